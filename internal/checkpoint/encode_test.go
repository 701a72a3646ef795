package checkpoint

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/stretchr/testify/require"
)

// sample returns a manifest with something of everything.
func sample() *Manifest {
	return &Manifest{
		Step: 1200, World: 2,
		Meta:  map[string]json.RawMessage{"seed": json.RawMessage("42"), "config": json.RawMessage(`{"a<b": "é\u2028"}`)},
		Files: []File{{"rank-00000-of-00002.safetensors", 288, 0xdeadbeef}, {"rank-00001-of-00002.safetensors", 64 + 3<<20, 7}},
		Tensors: []Tensor{
			{Key: Key{"b&\"", "", 1}, DType: safetensors.BF16, Shape: []int{3, 0}},
			{Key: Key{"s", "", Shared}, DType: safetensors.F64, Pieces: []Piece{{0, 1, 0, 280, Sums{math.MaxUint32}}}},
			{Key: Key{"w", "exp_avg", Shared}, DType: safetensors.F32, Shape: []int{6, 1 << 17}, Steps: 9, Pieces: []Piece{
				{0, 5, 0, 192, Sums{1}}, {5, 6<<17 - 5, 1, 64, Sums{2, 3, 0x01020304}},
			}},
		},
	}
}

// TestEncode has the bytes of a manifest: they are the format. The checksum is by another program.
func TestEncode(t *testing.T) {
	const body = `{"step":1200,"world":2,"meta":{"config":{"a<b":"é\u2028"},"seed":42},` +
		`"files":[{"name":"rank-00000-of-00002.safetensors","size":288,"header":3735928559},` +
		`{"name":"rank-00001-of-00002.safetensors","size":3145792,"header":7}],"tensors":[` +
		`{"param":"b&\"","owner":1,"dtype":"BF16","shape":[3,0]},` +
		`{"param":"s","owner":-1,"dtype":"F64","pieces":[{"offset":0,"len":1,"file":0,"at":280,"sums":"/////w=="}]},` +
		`{"param":"w","entry":"exp_avg","owner":-1,"dtype":"F32","shape":[6,131072],"steps":9,"pieces":[` +
		`{"offset":0,"len":5,"file":0,"at":192,"sums":"AQAAAA=="},` +
		`{"offset":5,"len":786427,"file":1,"at":64,"sums":"AgAAAAMAAAAEAwIB"}]}]}`
	b, err := sample().Encode()
	require.NoError(t, err)
	require.Equal(t, `{"format":1,"crc32c":"a8a6f4c9","manifest":`+body+"}\n", string(b))
	m, err := Decode(b)
	require.NoError(t, err)
	want := sample()
	want.Meta["config"] = json.RawMessage(`{"a<b":"é\u2028"}`)
	require.Equal(t, want, m)
}

// TestDecodeRefuses changes a manifest in every way that its rules forbid.
func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(m *Manifest)
	}{
		{"step -1 of 2 ranks", func(m *Manifest) { m.Step = -1 }},
		{"step 1200 of 0 ranks", func(m *Manifest) { m.World = 0 }},
		{`"../a" is no name for a file`, func(m *Manifest) { m.Files[0].Name = "../a" }},
		{`"a/b" is no name for a file`, func(m *Manifest) { m.Files[0].Name = "a/b" }},
		{`"a\\b" is no name for a file`, func(m *Manifest) { m.Files[0].Name = `a\b` }},
		{`"C:x" is no name for a file`, func(m *Manifest) { m.Files[0].Name = "C:x" }},
		{`".." is no name for a file`, func(m *Manifest) { m.Files[0].Name = ".." }},
		{`"" is no name for a file`, func(m *Manifest) { m.Files[0].Name = "" }},
		{`"Manifest.json" is no name for a file`, func(m *Manifest) { m.Files[0].Name = "Manifest.json" }},
		{"listed twice", func(m *Manifest) { m.Files[1].Name = strings.ToUpper(m.Files[0].Name) }},
		{"has -1 bytes", func(m *Manifest) { m.Files[0].Size = -1 }},
		{`"" of parameter "" is no name`, func(m *Manifest) { m.Tensors[1].Param = "" }},
		{"s@-2: owner -2", func(m *Manifest) { m.Tensors[1].Owner = -2 }},
		{"belongs to rank 2 of 2", func(m *Manifest) { m.Tensors[0].Owner = 2 }},
		{"-1 steps", func(m *Manifest) { m.Tensors[0].Steps = -1 }},
		{`s: elements of type "" are unknown`, func(m *Manifest) { m.Tensors[1].DType = "" }},
		{"there is no F64 tensor of shape [-1]", func(m *Manifest) { m.Tensors[1].Shape = []int{-1} }},
		{"there is no F64 tensor of shape", func(m *Manifest) { m.Tensors[1].Shape = []int{math.MaxInt / 8, 1 << 30} }},
		{"there is no F64 tensor of shape", func(m *Manifest) { m.Tensors[1].Shape = []int{math.MaxInt} }},
		{"s is listed behind s", func(m *Manifest) { m.Tensors = append(m.Tensors[:2], m.Tensors[1:]...) }},
		{"s is listed behind exp_avg:w", func(m *Manifest) { m.Tensors = append(m.Tensors, m.Tensors[1]) }},
		{"are both called e:s", func(m *Manifest) {
			m.Tensors[1].Param = "e:s"
			s := m.Tensors[1]
			s.Key = Key{"s", "e", Shared}
			m.Tensors = []Tensor{m.Tensors[1], s}
		}},
		{"exp_avg:w[0:5] is missing, up to what is in rank-00001", func(m *Manifest) { m.Tensors[2].Pieces = m.Tensors[2].Pieces[1:] }},
		{"exp_avg:w[5:786432] of 786432 elements is missing", func(m *Manifest) { m.Tensors[2].Pieces = m.Tensors[2].Pieces[:1] }},
		{"s[0:1] of 1 elements is missing", func(m *Manifest) { m.Tensors[1].Pieces = nil }},
		{"exp_avg:w[5:6] is twice: in rank-00000", func(m *Manifest) { m.Tensors[2].Pieces[0].Len = 6 }},
		{"exp_avg:w[4:5] is missing, up to", func(m *Manifest) { m.Tensors[2].Pieces[0].Len = 4 }},
		{"exp_avg:w[0:5] is missing", func(m *Manifest) { p := m.Tensors[2].Pieces; p[0], p[1] = p[1], p[0] }},
		{"a piece has 0 elements at 0 of 1", func(m *Manifest) { m.Tensors[1].Pieces[0].Len = 0 }},
		{"a piece has 1 elements at -1 of 1", func(m *Manifest) { m.Tensors[1].Pieces[0].Offset = -1 }},
		{"a piece has 2 elements at 0 of 1", func(m *Manifest) { m.Tensors[1].Pieces[0].Len = 2 }},
		{"of 1", func(m *Manifest) {
			m.Tensors[1].Pieces[0].Offset, m.Tensors[1].Pieces[0].Len = math.MaxInt, math.MaxInt
		}},
		{"a piece has 1 elements at 0 of 0", func(m *Manifest) { m.Tensors[0].Pieces = m.Tensors[1].Pieces }},
		{"is in file 2 of 2", func(m *Manifest) { m.Tensors[1].Pieces[0].File = 2 }},
		{"is in file -1 of 2", func(m *Manifest) { m.Tensors[1].Pieces[0].File = -1 }},
		{"piece [0:1] is 8 bytes at 281 of file rank-00000-of-00002.safetensors, which has 288",
			func(m *Manifest) { m.Tensors[1].Pieces[0].At++ }},
		{"at -8 of file", func(m *Manifest) { m.Tensors[1].Pieces[0].At = -8 }},
		{"at 9223372036854775807 of file", func(m *Manifest) { m.Tensors[1].Pieces[0].At = math.MaxInt64 }},
		{"has 0 checksums, not 1", func(m *Manifest) { m.Tensors[1].Pieces[0].Sums = nil }},
		{"has 2 checksums, not 3", func(m *Manifest) { m.Tensors[2].Pieces[1].Sums = Sums{1, 2} }},
	} {
		m := sample()
		c.change(m)
		_, err := m.Encode()
		require.ErrorContains(t, err, c.want)
		body, err := compact(m)
		require.NoError(t, err)
		_, err = Decode(seal(body))
		require.ErrorContains(t, err, c.want)
		require.NotErrorIs(t, err, ErrFormat)
	}
	m := sample()
	m.Tensors[1].Param = "\xff"
	_, err := m.Encode()
	require.ErrorContains(t, err, "is no name")
	m = sample()
	m.Meta["\xff"] = json.RawMessage("1")
	_, err = m.Encode()
	require.ErrorContains(t, err, "not UTF-8")
}

// TestDecodeText has texts that are no manifest of this version.
func TestDecodeText(t *testing.T) {
	good := string(must(sample().Encode()))
	for _, version := range []string{"0", "2", "-1"} {
		_, err := Decode([]byte(strings.Replace(good, `"format":1`, `"format":`+version, 1)))
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, "its version is "+version+", this program reads 1")
	}
	_, err := Decode([]byte(`{"format":2,"new":{"shape":"of things"}}`))
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
		_, err := Decode(seal([]byte(body)))
		require.ErrorContains(t, err, "manifest: ", body)
	}
}

// FuzzDecode looks for bytes that make Decode panic, or that it takes for a manifest which Encode
// does not. The input is the text inside its checksum, which no fuzzer would find.
func FuzzDecode(f *testing.F) {
	f.Add(must(compact(sample())), true)
	f.Add(must(sample().Encode()), false)
	f.Add([]byte(`{"world":1,"tensors":[{"param":"p","dtype":"F32","shape":[0]}]}`), true)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed {
			b = seal(b)
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
		}
	})
}

// TestMerge has ranks that disagree, and ones that leave elements out.
func TestMerge(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := newWhole(r, Key{"w", "", Shared}, safetensors.F32, 2, 5)
	shards := func(cuts ...[2]int) []*Shard {
		var list []*Shard
		for i, c := range cuts {
			list = append(list, must(WriteShard(t.Context(), newMemory(), fmt.Sprint("f", i), []Part{w.part(c[0], c[1])}, nil)))
		}
		return list
	}
	files, tensors, err := Merge(shards([2]int{4, 10}, [2]int{0, 0}, [2]int{0, 4}))
	require.NoError(t, err)
	require.Equal(t, []string{"f0", "f2"}, []string{files[0].Name, files[1].Name})
	require.Len(t, tensors, 1)
	require.Equal(t, []int{1, 0}, []int{tensors[0].Pieces[0].File, tensors[0].Pieces[1].File})

	other := shards([2]int{0, 4}, [2]int{0, 0}, [2]int{4, 10})
	other[2].Tensors[0].Shape = []int{5, 2}
	steps := shards([2]int{0, 4}, [2]int{4, 10})
	steps[1].Tensors[0].Steps = 8
	dtype := shards([2]int{0, 4}, [2]int{4, 10})
	dtype[1].Tensors[0].DType = safetensors.F16
	named := shards([2]int{0, 4}, [2]int{4, 10})
	named[1].File.Name = "f0"
	for want, list := range map[string][]*Shard{
		"w is F32 [2 5] after 0 steps on rank 0 and F32 [5 2] after 0 steps on rank 2": other,
		"w is F32 [2 5] after 0 steps on rank 0 and F32 [2 5] after 8 steps on rank 1": steps,
		"w is F32 [2 5] after 0 steps on rank 0 and F16 [2 5] after 0 steps on rank 1": dtype,
		"ranks 0 and 1 have both written f0":                                           named,
		"w[0:3] is missing, up to what is in the file of rank 0":                       shards([2]int{3, 10}),
		"w[4:6] is missing, up to what is in the file of rank 2":                       shards([2]int{0, 4}, [2]int{0, 0}, [2]int{6, 10}),
		"w[9:10] of 10 elements is missing":                                            shards([2]int{4, 9}, [2]int{0, 4}),
		"w[3:4] is twice: in the file of rank 0 and in the file of rank 1":             shards([2]int{0, 4}, [2]int{3, 10}),
		"w[3:4] is twice: in the file of rank 2 and in the file of rank 0":             shards([2]int{3, 4}, [2]int{4, 10}, [2]int{0, 4}),
		"w[0:10] is twice: in the file of rank 0 and in the file of rank 1":            shards([2]int{0, 10}, [2]int{0, 10}),
		"w[0:10] of 10 elements is missing":                                            shards([2]int{0, 0}),
	} {
		_, _, err := Merge(list)
		require.ErrorContains(t, err, want)
	}
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
	require.EqualError(t, err, fmt.Sprintf("c: manifest.json: damaged: it has %d bytes, at most %d are read", size+100, size))
	require.Equal(t, before, fsys.read.Load())

	m := sample()
	b, err := m.Encode()
	require.NoError(t, err)
	maxManifest = int64(len(b)) - 1
	_, err = m.Encode()
	require.EqualError(t, err, fmt.Sprintf("manifest: it would have %d bytes, at most %d are read; 21 of them are metadata, such as Extra", len(b), len(b)-1))
}
