package data

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// checkCSV compares the records of a file with those of the text in memory.
func checkCSV(t require.TestingT, path string, text []byte) {
	require.NoError(t, os.WriteFile(path, text, 0o600))
	want, wrong := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, bom))).ReadAll()
	src, err := OpenCSV[struct {
		All []string `data:"*"`
	}](path)
	if wrong != nil {
		require.ErrorContains(t, err, path)
		return
	}
	if len(want) < 2 {
		require.ErrorContains(t, err, path)
		return
	}
	if len(slices.Compact(slices.Sorted(slices.Values(want[0])))) < len(want[0]) {
		require.ErrorContains(t, err, "two columns have the name")
		return
	}
	require.NoError(t, err)
	var got [][]string
	for _, row := range readAll(t, src) {
		got = append(got, row.All)
	}
	require.Equal(t, want[1:], got)
	require.NoError(t, src.Close())
}

func TestCSVText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	for _, text := range []string{"a", "a\n", "a,b\n1,2", "\ufeffa,b\r\n\r\n\"1\r\n\n\",\"x\"\"y\"\r\n\n3,4\r\n\n", "a,b\n1\n", "a,a\n1,2", "a\n\"", "\n\n\na\n\n\n1"} {
		checkCSV(t, path, []byte(text))
	}
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SampledFrom([]string{"\n", "\n", "\r\n", ",", ",", "\"", "\"", "a", "b", "1", " ", "ä"})
		checkCSV(t, path, []byte("a,b\n"+strings.Join(rapid.SliceOfN(words, 1, 20).Draw(t, "text"), "")))
	})
	rapid.Check(t, func(t *rapid.T) { // records that are right
		field := rapid.StringMatching(`[a-b1 ,"\n]{0,5}`)
		var text bytes.Buffer
		w := csv.NewWriter(&text)
		w.UseCRLF = rapid.Bool().Draw(t, "CRLF")
		require.NoError(t, w.Write([]string{"a", "b", "c"}))
		for range rapid.IntRange(1, 20).Draw(t, "records") {
			require.NoError(t, w.Write(rapid.SliceOfN(field, 3, 3).Draw(t, "record")))
		}
		w.Flush()
		checkCSV(t, path, text.Bytes())
	})
}

func FuzzCSV(f *testing.F) {
	for _, text := range []string{"a,b\n1,2", "\ufeffa\r\n\"1\r\n\",\"x\"\"y\"\n", "a\n\n\n1", "a,a\n1,1", ",\n"} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "a.csv")
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 0 {
			checkCSV(t, path, text)
		}
	})
}

func TestCSV(t *testing.T) {
	type row struct {
		Label  int8
		Pixels [2]float32 `data:"pixel*"`
		Name   string     `data:"the name"`
		Tags   []uint16   `data:"tag *"`
		Good   bool       `data:"good"`
		Score  float64    `data:"score"`
		Skip   chan int   `data:"-"`
		hidden int
	}
	const header = "the name,tag a,Label,pixel0,score,pixel1,good,tag b,other"
	path := write(t, "rows.csv", []byte(header+"\n"+
		"\"one\ntwo\", 1 ,-128,0.5,1e300,-inf,true,65535,x\n"+
		"two,2,128,1,1,1,1,2,y\n\n"+
		"\"a\nb\nc\",2,3,1,1,1,1,,y\n"+
		"d,2,3,1e40,1,1,1,2,y\n"+
		"e,2,3,1,,1,maybe,2,y\n"))
	src, err := OpenCSV[row](path)
	require.NoError(t, err)
	require.Equal(t, "rows.csv(5 CSV records)", src.String())
	got, err := src.At(0)
	require.NoError(t, err)
	require.Equal(t, "-128 [0.5 -Inf] \"one\\ntwo\" [1 65535] true 1e+300",
		fmt.Sprintf("%v %v %q %v %v %v", got.Label, got.Pixels, got.Name, got.Tags, got.Good, got.Score))
	require.Zero(t, got.hidden)
	for i, want := range []string{
		1: `:4: column "Label": "128" is no int8 (value out of range): correct the file, or give the field another type`,
		2: `:8: column "tag b": "" is no uint16 (invalid syntax): correct the file, or give the field another type`,
		3: `:9: column "pixel0": "1e40" is no float32 (value out of range): correct the file, or give the field another type`,
		4: `:10: column "good": "maybe" is no bool (invalid syntax): correct the file, or give the field another type`,
	} {
		if want != "" {
			_, err := src.At(i)
			require.EqualError(t, err, "data: "+path+want)
		}
	}
	require.NoError(t, src.Close())
}

func TestCSVRefuses(t *testing.T) {
	type list struct {
		A [2]int `data:"a*"`
	}
	refuse := func(text, want string, open func(path string) error) {
		path := write(t, "a.csv", []byte(text))
		err := open(path)
		require.EqualError(t, err, "data: "+path+": "+want)
	}
	refuse("b,c\n1,2", "int `data:\"A\"`: no such column among [\"b\" \"c\"]: the tag data:\"NAME\" of a field names its column", openers["CSV"])
	for _, text := range []string{"a;b\n1;2\n", "a\tb\n1,5\t2\n", "a|b\n1|2\n"} {
		refuse(text, fmt.Sprintf("the header line %q has no comma: only commas separate columns, so save the file with commas", text[:3]), openers["CSV"])
	}
	refuse("label\n1", "int `data:\"lable\"`: no such column among [\"label\"]: is \"label\" meant? If so, give the field the tag `data:\"label\"`",
		func(path string) error {
			_, err := OpenCSV[struct {
				A int `data:"lable"`
			}](path)
			return err
		})
	refuse("A,A\n1,2", `two columns have the name "A"`, openers["CSV"])
	refuse("A\n\n", "no record follows the column names", openers["CSV"])
	refuse("A,b\n1,2\n3", "record on line 3: wrong number of fields", openers["CSV"])
	refuse("A\n1\n\"", `parse error on line 3, column 2: extraneous or missing " in quoted-field`, openers["CSV"])
	refuse("\n\n", "the header line with the column names is missing", openers["CSV"])
	refuse("\xff\xfeA", "UTF-16, want UTF-8", openers["CSV"])
	refuse("a1\n1", "[2]int `data:\"a*\"`: 1 columns match, want 1", func(path string) error { _, err := OpenCSV[list](path); return err })
	refuse("a\n1", "samples of int, want a struct", func(path string) error { _, err := OpenCSV[int](path); return err })
	refuse("a\n1", "samples of struct { a int }, which has no fields", func(path string) error { _, err := OpenCSV[struct{ a int }](path); return err })
	refuse("A\n1", "[]int `data:\"A\"`: the tag of an array or a slice must end in a star, and no other tag may",
		func(path string) error { _, err := OpenCSV[struct{ A []int }](path); return err })
	refuse("A\n1", "values of complex64, want numbers, text, or true and false",
		func(path string) error { _, err := OpenCSV[struct{ A complex64 }](path); return err })
}
