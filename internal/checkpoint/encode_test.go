package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// sumsOf returns sums as they are in memory.
func sumsOf(list ...uint32) (s Sums) {
	for _, sum := range list {
		s = binary.LittleEndian.AppendUint32(s, sum)
	}
	return s
}

// sample returns a manifest with something of everything, as it is now.
func sample() *Manifest { return sample1().packed() }

// packed returns m with its pieces packed, whatever they are.
func (m *manifest1) packed() *Manifest {
	now := m.Manifest
	for _, t := range m.Tensors {
		t.Tensor.Pieces = pack(t.Pieces)
		now.Tensors = append(now.Tensors, t.Tensor)
	}
	return &now
}

// sample1 is sample in format 1.
func sample1() *manifest1 {
	return &manifest1{Manifest: Manifest{
		Step: 1200, World: 2,
		Meta:  map[string]json.RawMessage{"seed": json.RawMessage("42"), "config": json.RawMessage(`{"a<b": "é\u2028"}`)},
		Files: []File{{"rank-00000-of-00002.safetensors", 288, 0xdeadbeef}, {"rank-00001-of-00002.safetensors", 64 + 3<<20, 7}},
	}, Tensors: []tensor1{
		{Tensor: Tensor{Key: Key{"b&\"", "", 1}, DType: safetensors.BF16, Shape: []int{3, 0}}},
		{Tensor: Tensor{Key: Key{"s", "", Shared}, DType: safetensors.F64}, Pieces: []Piece{{0, 1, 0, 280, sumsOf(math.MaxUint32)}}},
		{Tensor: Tensor{Key: Key{"w", "exp_avg", Shared}, DType: safetensors.F32, Shape: []int{6, 1 << 17}, Steps: 9}, Pieces: []Piece{
			{0, 5, 0, 192, sumsOf(1)}, {5, 6<<17 - 5, 1, 64, sumsOf(2, 3, 0x01020304)},
		}},
	}}
}

// TestEncode has the bytes of a manifest: they are the format. The checksum, and the pieces, are by
// another program.
func TestEncode(t *testing.T) {
	const body = `{"step":1200,"world":2,"meta":{"config":{"a<b":"é\u2028"},"seed":42},` +
		`"files":[{"name":"rank-00000-of-00002.safetensors","size":288,"header":3735928559},` +
		`{"name":"rank-00001-of-00002.safetensors","size":3145792,"header":7}],"tensors":[` +
		`{"param":"b&\"","owner":1,"dtype":"BF16","shape":[3,0]},` +
		`{"param":"s","owner":-1,"dtype":"F64","pieces":"AAIAsAT/////"},` +
		`{"param":"w","entry":"exp_avg","owner":-1,"dtype":"F32","shape":[6,131072],"steps":9,"pieces":"AAoAgAMBAAAAAOz/XwL/AQIAAAADAAAABAMCAQ=="}]}`
	b, err := sample().Encode()
	require.NoError(t, err)
	require.Equal(t, `{"format":2,"crc32c":"4bb6deda","manifest":`+body+"}\n", string(b))
	requireSample(t, b)
}

// TestDecodeFormat1 has the bytes of the same manifest as earlier versions have written it.
func TestDecodeFormat1(t *testing.T) {
	const body = `{"step":1200,"world":2,"meta":{"config":{"a<b":"é\u2028"},"seed":42},` +
		`"files":[{"name":"rank-00000-of-00002.safetensors","size":288,"header":3735928559},` +
		`{"name":"rank-00001-of-00002.safetensors","size":3145792,"header":7}],"tensors":[` +
		`{"param":"b&\"","owner":1,"dtype":"BF16","shape":[3,0]},` +
		`{"param":"s","owner":-1,"dtype":"F64","pieces":[{"offset":0,"len":1,"file":0,"at":280,"sums":"/////w=="}]},` +
		`{"param":"w","entry":"exp_avg","owner":-1,"dtype":"F32","shape":[6,131072],"steps":9,"pieces":[` +
		`{"offset":0,"len":5,"file":0,"at":192,"sums":"AQAAAA=="},` +
		`{"offset":5,"len":786427,"file":1,"at":64,"sums":"AgAAAAMAAAAEAwIB"}]}]}`
	requireSample(t, []byte(`{"format":1,"crc32c":"a8a6f4c9","manifest":`+body+"}\n"))
	for format, other := range map[int]string{1: string(must(compact(sample()))), 2: body} {
		_, err := Decode(seal(format, []byte(other)))
		require.ErrorContains(t, err, "cannot unmarshal")
	}
}

func requireSample(t *testing.T, b []byte) {
	m, err := Decode(b)
	require.NoError(t, err)
	want := sample()
	want.Meta["config"] = json.RawMessage(`{"a<b":"é\u2028"}`)
	require.Equal(t, want, m)
	var pieces []Piece
	for p := range m.Tensors[2].All() {
		pieces = append(pieces, p)
	}
	require.Equal(t, sample1().Tensors[2].Pieces, pieces)
}

// TestDecodeRefuses changes a manifest in every way that its rules forbid.
func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(m *manifest1)
	}{
		{"step -1 of 2 ranks", func(m *manifest1) { m.Step = -1 }},
		{"step 1200 of 0 ranks", func(m *manifest1) { m.World = 0 }},
		{`"../a" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "../a" }},
		{`"a/b/c" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "a/b/c" }},
		{`"/b" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "/b" }},
		{`"a/" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "a/" }},
		{`"../b" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "../b" }},
		{`"a/.." is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "a/.." }},
		{`"./b" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "./b" }},
		{`"manifest.json/b" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "manifest.json/b" }},
		{`"a\\b" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = `a\b` }},
		{`"C:x" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "C:x" }},
		{`".." is not a valid file name`, func(m *manifest1) { m.Files[0].Name = ".." }},
		{`"" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "" }},
		{`"Manifest.json" is not a valid file name`, func(m *manifest1) { m.Files[0].Name = "Manifest.json" }},
		{"listed twice", func(m *manifest1) { m.Files[1].Name = strings.ToUpper(m.Files[0].Name) }},
		{"has -1 bytes", func(m *manifest1) { m.Files[0].Size = -1 }},
		{`"" of parameter "" is not a valid name`, func(m *manifest1) { m.Tensors[1].Param = "" }},
		{"s@-2: owner -2", func(m *manifest1) { m.Tensors[1].Owner = -2 }},
		{"belongs to rank 2, but there are only 2 ranks", func(m *manifest1) { m.Tensors[0].Owner = 2 }},
		{"-1 steps", func(m *manifest1) { m.Tensors[0].Steps = -1 }},
		{`s: element type "" is unknown`, func(m *manifest1) { m.Tensors[1].DType = "" }},
		{"a tensor of F64 cannot have shape [-1]", func(m *manifest1) { m.Tensors[1].Shape = []int{-1} }},
		{"a tensor of F64 cannot have shape", func(m *manifest1) { m.Tensors[1].Shape = []int{math.MaxInt / 8, 1 << 30} }},
		{"a tensor of F64 cannot have shape", func(m *manifest1) { m.Tensors[1].Shape = []int{math.MaxInt} }},
		{"s is listed after s", func(m *manifest1) { m.Tensors = append(m.Tensors[:2], m.Tensors[1:]...) }},
		{"s is listed after exp_avg:w", func(m *manifest1) { m.Tensors = append(m.Tensors, m.Tensors[1]) }},
		{"are both called e:s", func(m *manifest1) {
			m.Tensors[1].Param = "e:s"
			s := m.Tensors[1]
			s.Key = Key{"s", "e", Shared}
			m.Tensors = []tensor1{m.Tensors[1], s}
		}},
		{"exp_avg:w[0:5] is missing before the elements in rank-00001", func(m *manifest1) { m.Tensors[2].Pieces = m.Tensors[2].Pieces[1:] }},
		{"exp_avg:w[5:786432] of 786432 elements is missing", func(m *manifest1) { m.Tensors[2].Pieces = m.Tensors[2].Pieces[:1] }},
		{"s[0:1] of 1 elements is missing", func(m *manifest1) { m.Tensors[1].Pieces = nil }},
		{"exp_avg:w[5:6] occurs twice: in rank-00000", func(m *manifest1) { m.Tensors[2].Pieces[0].Len = 6 }},
		{"exp_avg:w[4:5] is missing before", func(m *manifest1) { m.Tensors[2].Pieces[0].Len = 4 }},
		{"exp_avg:w[0:5] is missing", func(m *manifest1) { p := m.Tensors[2].Pieces; p[0], p[1] = p[1], p[0] }},
		{"a piece has 0 elements from element 0 on, but the tensor has 1", func(m *manifest1) { m.Tensors[1].Pieces[0].Len = 0 }},
		{"a piece has 1 elements from element -1 on, but the tensor has 1", func(m *manifest1) { m.Tensors[1].Pieces[0].Offset = -1 }},
		{"a piece has 2 elements from element 0 on, but the tensor has 1", func(m *manifest1) { m.Tensors[1].Pieces[0].Len = 2 }},
		{"s: ", func(m *manifest1) { m.Tensors[1].Pieces[0].Len = math.MaxInt }},
		{"s: ", func(m *manifest1) { m.Tensors[1].Pieces[0].Len = math.MinInt }},
		{"the tensor has 1", func(m *manifest1) { m.Tensors[1].Pieces[0].Offset = math.MaxInt }},
		{"a piece has 1 elements from element 0 on, but the tensor has 0", func(m *manifest1) { m.Tensors[0].Pieces = m.Tensors[1].Pieces }},
		{"is in file 2, but there are only 2 files", func(m *manifest1) { m.Tensors[1].Pieces[0].File = 2 }},
		{"is in file -1, but there are only 2 files", func(m *manifest1) { m.Tensors[1].Pieces[0].File = -1 }},
		{"piece [0:1] has 8 bytes from byte 281 of file rank-00000-of-00002.safetensors on, which has only 288 bytes",
			func(m *manifest1) { m.Tensors[1].Pieces[0].At++ }},
		{"from byte -8 of file", func(m *manifest1) { m.Tensors[1].Pieces[0].At = -8 }},
		{"from byte 9223372036854775807 of file", func(m *manifest1) { m.Tensors[1].Pieces[0].At = math.MaxInt64 }},
		{"s: ", func(m *manifest1) { m.Tensors[1].Pieces[0].Sums = nil }},
		{"exp_avg:w: ", func(m *manifest1) { m.Tensors[2].Pieces[1].Sums = sumsOf(1, 2) }},
		{"exp_avg:w: ", func(m *manifest1) { m.Tensors[2].Pieces[0].Sums = sumsOf(1, 2) }},
	} {
		m := sample1()
		c.change(m)
		_, err := m.packed().Encode()
		require.ErrorContains(t, err, c.want)
		_, err = Decode(seal(1, must(compact(m))))
		require.ErrorContains(t, err, c.want)
		require.NotErrorIs(t, err, ErrFormat)
		_, err = Decode(seal(2, must(compact(m.packed()))))
		require.ErrorContains(t, err, c.want)
		require.NotErrorIs(t, err, ErrFormat)
	}
	m := sample()
	m.Tensors[1].Param = "\xff"
	_, err := m.Encode()
	require.ErrorContains(t, err, "is not a valid name")
	m = sample()
	m.Meta["\xff"] = json.RawMessage("1")
	_, err = m.Encode()
	require.ErrorContains(t, err, "not UTF-8")
}

// TestDecodeText has texts that are no manifest of this version.
func TestDecodeText(t *testing.T) {
	good := string(must(sample().Encode()))
	for _, version := range []string{"0", "3", "-1"} {
		_, err := Decode([]byte(strings.Replace(good, `"format":2`, `"format":`+version, 1)))
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, "version "+version+", this program reads versions 1 to 2")
	}
	_, err := Decode([]byte(`{"format":3,"new":{"shape":"of things"}}`))
	require.ErrorIs(t, err, ErrFormat)
	for _, text := range []string{
		"", "{}", "[]", "null", "\x00", `{"format":1}`, `{"format":"1"}`, good[:len(good)-1], good[:len(good)/2], good + " ", " " + good,
		strings.Replace(good, "1200", "1300", 1), strings.Replace(good, `"crc32c"`, `"crc32C"`, 1),
	} {
		_, err := Decode([]byte(text))
		require.ErrorIs(t, err, ErrDamaged, text)
	}
	for _, body := range []string{
		"null", "[]", `{"step":1,"world":1,"later":1}`, `{"step":1,"world":1.5}`,
		`{"world":1,"files":[{"name":"a","size":1}],"tensors":[{"param":"p","dtype":"I8","pieces":[{"len":1,"sums":"AAAAAAA="}]}]}`,
		`{"world":1,"files":[{"name":"a","size":1}],"tensors":[{"param":"p","dtype":"I8","pieces":[{"len":1,"sums":"A"}]}]}`,
	} {
		for format := 1; format <= Format; format++ {
			_, err := Decode(seal(format, []byte(body)))
			require.ErrorContains(t, err, "manifest: ", body)
		}
	}
}

// FuzzDecode looks for bytes that make Decode panic, or that it takes for a manifest which Encode
// does not, or whose pieces do not cover its tensors. The input is the text inside its checksum,
// which no fuzzer would find, of a format, or 0 for all of a file.
func FuzzDecode(f *testing.F) {
	f.Add(must(compact(sample1())), 1)
	f.Add(must(compact(sample())), 2)
	f.Add(must(sample().Encode()), 0)
	f.Add([]byte(`{"world":1,"tensors":[{"param":"p","dtype":"F32","shape":[0]}]}`), 2)
	f.Fuzz(func(t *testing.T, b []byte, format int) {
		if format != 0 {
			b = seal(format, b)
		}
		m, err := Decode(b)
		if err != nil {
			return
		}
		b, err = m.Encode()
		require.NoError(t, err)
		again, err := Decode(b)
		require.NoError(t, err)
		require.Equal(t, string(b), string(must(again.Encode())))
		for _, tensor := range m.Tensors {
			_, ok := m.Lookup(tensor.Key)
			require.True(t, ok)
			requireCovered(t, &tensor)
		}
	})
}

// requireCovered looks at the pieces of a tensor that Decode has returned, and packs them again.
func requireCovered(t require.TestingT, tensor *Tensor) {
	var list []Piece
	at := 0
	for p := range tensor.All() {
		require.Equal(t, at, p.Offset)
		require.Len(t, p.Sums, (p.Len*tensor.DType.Size()+ChunkBytes-1)/ChunkBytes*sumBytes)
		at = p.end()
		list = append(list, p)
	}
	require.Equal(t, tensor.Len(), at)
	again := *tensor
	again.Pieces = pack(list)
	require.Equal(t, list, slices.Collect(again.All()))
}

// FuzzPieces has bytes that are the pieces of a tensor, or are none: which no fuzzer would write in
// base64.
func FuzzPieces(f *testing.F) {
	for _, t := range sample().Tensors {
		f.Add([]byte(t.Pieces), t.Len())
	}
	f.Add([]byte{0, 2, 0, 0, 1, 2, 3, 4, 0, 2, 0, 0, 1, 2, 3, 4}, 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		m := &Manifest{World: 1, Files: []File{{"a", math.MaxInt64, 0}, {"b", 1 << 30, 0}},
			Tensors: []Tensor{{Key: Key{"p", "", Shared}, DType: safetensors.F32, Shape: []int{n}, Pieces: b}}}
		if m.validate() == nil {
			requireCovered(t, &m.Tensors[0])
		}
		s := &Shard{File: m.Files[0], Tensors: m.Tensors}
		if s.validate() == nil {
			_, _, _ = Merge([]*Shard{s, s})
		}
	})
}

// TestWithin looks for the pieces that intervals meet, and compares with all pieces.
func TestWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tensor := Tensor{DType: safetensors.F32}
		var list []Piece
		n := 0
		for i := range rapid.IntRange(0, 5).Draw(t, "pieces") {
			p := Piece{n, rapid.IntRange(1, 4).Draw(t, "len"), rapid.IntRange(0, 9).Draw(t, "file"), rapid.Int64Min(0).Draw(t, "at"), sumsOf(uint32(i))}
			n += p.Len
			list = append(list, p)
		}
		tensor.Shape, tensor.Pieces = []int{n}, pack(list)
		require.Equal(t, list, slices.Collect(tensor.All()))
		from := rapid.IntRange(0, n).Draw(t, "from")
		to := rapid.IntRange(from, n).Draw(t, "to")
		list = slices.DeleteFunc(list, func(p Piece) bool { return p.end() <= from || p.Offset >= to })
		if len(list) == 0 {
			list = nil
		}
		require.Equal(t, list, slices.Collect(tensor.within(from, to-from)))
	})
}

// TestMerge has ranks that disagree, and ones that leave elements out.
func TestMerge(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := newWhole(r, Key{"w", "", Shared}, safetensors.F32, 2, 5)
	shards := func(cuts ...[2]int) []*Shard {
		var list []*Shard
		for i, c := range cuts {
			list = append(list, must(WriteShard(t.Context(), newMemory(), "", fmt.Sprint("f", i), []Part{w.part(c[0], c[1])}, nil)))
		}
		return list
	}
	files, tensors, err := Merge(shards([2]int{4, 10}, [2]int{0, 0}, [2]int{0, 4}))
	require.NoError(t, err)
	require.Equal(t, []string{"f0", "f2"}, []string{files[0].Name, files[1].Name})
	require.Len(t, tensors, 1)
	pieces := slices.Collect(tensors[0].All())
	require.Equal(t, []int{1, 0}, []int{pieces[0].File, pieces[1].File})

	other := shards([2]int{0, 4}, [2]int{0, 0}, [2]int{4, 10})
	other[2].Tensors[0].Shape = []int{5, 2}
	steps := shards([2]int{0, 4}, [2]int{4, 10})
	steps[1].Tensors[0].Steps = 8
	dtype := shards([2]int{0, 4}, [2]int{4, 10})
	dtype[1].Tensors[0].DType = safetensors.F16
	named := shards([2]int{0, 4}, [2]int{4, 10})
	named[1].File.Name = "f0"
	for want, list := range map[string][]*Shard{
		"w is F32 [2 5] after 0 steps on rank 0 but F32 [5 2] after 0 steps on rank 2": other,
		"w is F32 [2 5] after 0 steps on rank 0 but F32 [2 5] after 8 steps on rank 1": steps,
		"w is F32 [2 5] after 0 steps on rank 0 but F16 [2 5] after 0 steps on rank 1": dtype,
		"ranks 0 and 1 have both written f0":                                           named,
		"w[0:3] is missing before the elements in the file of rank 0":                  shards([2]int{3, 10}),
		"w[4:6] is missing before the elements in the file of rank 2":                  shards([2]int{0, 4}, [2]int{0, 0}, [2]int{6, 10}),
		"w[9:10] of 10 elements is missing":                                            shards([2]int{4, 9}, [2]int{0, 4}),
		"w[3:4] occurs twice: in the file of rank 0 and in the file of rank 1":         shards([2]int{0, 4}, [2]int{3, 10}),
		"w[3:4] occurs twice: in the file of rank 2 and in the file of rank 0":         shards([2]int{3, 4}, [2]int{4, 10}, [2]int{0, 4}),
		"w[0:10] occurs twice: in the file of rank 0 and in the file of rank 1":        shards([2]int{0, 10}, [2]int{0, 10}),
		"w[0:10] of 10 elements is missing":                                            shards([2]int{0, 0}),
	} {
		_, _, err := Merge(list)
		require.ErrorContains(t, err, want)
	}
}

// TestFileNames has the names of files, few and many.
func TestFileNames(t *testing.T) {
	require.Equal(t, "rank-00999-of-01000.safetensors", FileName("rank", 999, 1000))
	require.Equal(t, "00000/rank-00999-of-01001.safetensors", FileName("rank", 999, 1001))
	require.Equal(t, "00012/rank-12345-of-20000.safetensors", FileName("rank", 12345, 20000))
}

// TestManifestSize makes manifests larger, and smaller, than they may be: what is too large is
// neither written nor read.
func TestManifestSize(t *testing.T) {
	fsys := newMemory()
	smallCheckpoint(t, fsys, "c")
	path := filepath.Join("c", ManifestName)
	size := len(fsys.files[path])
	defer func(n int64) { maxManifest = n }(maxManifest)
	maxManifest = int64(size)
	require.NoError(t, check(fsys, "c"))
	fsys.files[path] = append(fsys.files[path], make([]byte, 100)...)
	before := fsys.read.Load()
	_, err := OpenReader(t.Context(), fsys, "c")
	require.ErrorIs(t, err, ErrDamaged)
	require.EqualError(t, err, fmt.Sprintf("c: manifest.json: damaged: the file has %d bytes, at most %d are read", size+100, size))
	require.Equal(t, before, fsys.read.Load())

	m := sample()
	b, err := m.Encode()
	require.NoError(t, err)
	maxManifest = int64(len(b)) - 1
	_, err = m.Encode()
	require.EqualError(t, err, fmt.Sprintf("the manifest would have %d bytes, at most %d are allowed: save less in Extra and other metadata, which take 21 bytes", len(b), len(b)-1))
}
