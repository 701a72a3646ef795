package data

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// question is a JSON line of the tests.
type question struct {
	Text   string `json:"text"`
	Answer int    `json:"answer"`
	Weight int    `json:"weight,omitempty"`
}

func TestJSON(t *testing.T) {
	path := write(t, "q.jsonl", []byte("\ufeff{\"text\":\"1+1\",\"answer\":2,\"more\":[]}\r\n\n  \n"+
		"{\"Text\":\"\",\"answer\":-1,\"weight\":3}\n{\"answer\":\"x\"}\n{\"answer\":1} {}\n{\"te"))
	src, err := OpenJSON[question](path)
	require.NoError(t, err)
	require.Equal(t, "q.jsonl(5 JSON lines)", src.String())
	for i, want := range []question{{"1+1", 2, 0}, {"", -1, 3}} {
		got, err := src.At(i)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for i, want := range map[int]string{
		2: `:5: member "answer" is string, want int`,
		3: ":6: invalid character '{' after top-level value",
		4: ":7: unexpected end of JSON input",
	} {
		_, err := src.At(i)
		require.EqualError(t, err, "data: "+path+want)
	}
	require.NoError(t, src.Close())
	_, err = src.At(0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, path)
}

// TestJSONOfSeveralLines opens files of JSON that are not JSON lines. Each error has a command that
// converts the file.
func TestJSONOfSeveralLines(t *testing.T) {
	for text, want := range map[string]string{
		"[\n{\"text\":\"1+1\",\"answer\":2}\n]\n": "unexpected end of JSON input: each line must have one sample, as a complete JSON value; jq -c '.[]' converts an array to such lines",
		"[{\"text\":\"1+1\",\"answer\":2}]\n":     "the value is array, want data.question: each line must have one sample, as a complete JSON value; jq -c '.[]' converts an array to such lines",
		"{\n\"text\":\"1+1\",\"answer\":2\n}\n":   "unexpected end of JSON input: each line must have one sample, as a complete JSON value; jq -c . converts values of several lines to such lines",
	} {
		path := write(t, "a.json", []byte(text))
		_, err := OpenJSON[question](path)
		require.EqualError(t, err, "data: "+path+":1: "+want)
	}
}

// TestJSONMembers opens lines whose objects do not match the fields of a struct.
func TestJSONMembers(t *testing.T) {
	opens[question](t, `{"text":"a","answer":1,"weight":null}`, "")
	opens[question](t, `{"text":"a"}`, `member "answer" (int) is missing among ["text"]: if it may be missing, add omitempty to the tag of its field`)
	opens[question](t, `{"anwser":1,"text":"a"}`, `member "answer" (int) is missing; did you mean "anwser"?`)
	opens[question](t, `{"text":"a","answer":1,"wieght":2}`, `member "weight" (int) is missing; did you mean "wieght"?`)
	opens[question](t, `{"text":"a","answer":null}`, `member "answer" is null, want int: if it may be missing, add omitempty to the tag of its field`)
	opens[question](t, `{"text":"a","answer":1.5}`, `member "answer" is number 1.5, want int`)
	opens[question](t, `[1]`, `the value is array, want data.question`)
	opens[question](t, `null`, `the value is null, want data.question: if it may be missing, add omitempty to the tag of its field`)

	type chat struct {
		question
		Messages []struct{ Role, Content string }
		Pixels   *[2]float64
		Scores   map[string][]int `json:",omitzero"`
		At       *time.Time
		Raw      []byte
		Any      any
		Left     int `json:"-"`
	}
	const whole = `{"text":"a","answer":1,"messages":[{"role":"user","content":"hi"}],"pixels":[1,2],"scores":{"b":[1]},"raw":"AAE=","any":null}`
	opens[chat](t, whole, "")
	for _, c := range []struct{ old, new, want string }{
		{`,"content":"hi"`, ``, `member "Messages[0].Content" (string) is missing among ["role"]`},
		{`"answer":1,`, ``, `member "answer" (int) is missing among`},
		{`[1,2]`, `[1,2,3]`, `member "Pixels" has 3 elements, want [2]float64`},
		{`[1,2]`, `[1,null]`, `member "Pixels[1]" is null, want float64`},
		{`[1]`, `[1,null]`, `member "Scores.b[1]" is null, want int`},
		{`"raw":"AAE=",`, ``, `member "Raw" ([]uint8) is missing among`},
	} {
		text := strings.Replace(whole, c.old, c.new, 1)
		require.NotEqual(t, whole, text)
		opens[chat](t, text, c.want)
	}
}

// opens opens a file with a line: its first one, and its second one behind another. Both ways have
// the same error.
func opens[T any](t *testing.T, line, want string) {
	t.Helper()
	path := write(t, "a.jsonl", []byte(line))
	src, err := OpenJSON[T](path)
	if want == "" {
		require.NoError(t, err)
		require.NoError(t, src.Close())
		return
	}
	require.ErrorContains(t, err, "data: "+path+":1: "+want)
	if _, ok := any(*new(T)).(question); !ok {
		return
	}
	path = write(t, "b.jsonl", []byte("{\"text\":\"a\",\"answer\":1}\n"+line))
	src, err = OpenJSON[T](path)
	require.NoError(t, err)
	_, err = src.At(1)
	require.ErrorContains(t, err, "data: "+path+":2: "+want)
	require.NoError(t, src.Close())
}

// TestJSONLeftOut reads objects with members that no field holds: the log has them once.
func TestJSONLeftOut(t *testing.T) {
	log := logged(t)
	const line = `{"text":"a","answer":1`
	src, err := OpenJSON[question](write(t, "a.jsonl", []byte(line+"}\n"+line+`,"from":"b","id":1}`+"\n"+line+`,"source":2}`)))
	require.NoError(t, err)
	defer src.Close()
	require.Empty(t, log.String())
	readAll(t, src)
	require.Equal(t, 1, strings.Count(log.String(), "are ignored"), log.String())
}

// BenchmarkJSON compares the time of OpenJSON with json.Unmarshal alone.
func BenchmarkJSON(b *testing.B) {
	line := []byte(`{"text":"` + strings.Repeat("all happy families are alike; ", 20) + `","answer":1}`)
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			var q question
			if err := json.Unmarshal(line, &q); err != nil {
				b.Fatal(err)
			}
		}
	})
	src, err := OpenJSON[question](write(b, "a.jsonl", line))
	require.NoError(b, err)
	defer src.Close()
	b.Run("file", func(b *testing.B) {
		for b.Loop() {
			if _, err := src.At(0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
