package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// split cuts text that comes in pieces of n bytes. Progress lines end with "~".
func split(text string, n int) []string {
	var got []string
	s := splitter{emit: func(line []byte, progress bool) {
		if progress {
			got = append(got, string(line)+"~")
		} else {
			got = append(got, string(line))
		}
	}}
	for len(text) > 0 {
		k := min(n, len(text))
		s.Write([]byte(text[:k]))
		text = text[k:]
	}
	s.flush()
	return got
}

func TestSplitter(t *testing.T) {
	for text, want := range map[string][]string{
		"":                     nil,
		"a\nb\n":               {"a", "b"},
		"a\n\nb":               {"a", "", "b"},
		"a\r\nb\r\n":           {"a~", "a", "b~", "b"},
		"1%\r2%\r3%\n":         {"1%~", "2%~", "3%"},
		"1%\r2%\r":             {"1%~", "2%~", "2%"},
		"\r1%\r2%\ndone":       {"~", "1%~", "2%", "done"},
		"1%\r\r2%\n":           {"1%~", "2%"},
		strings.Repeat("x", 9): {"xxxxxxxxx"},
	} {
		for n := 1; n <= 10; n++ {
			require.Equal(t, want, split(text, n), "%q in pieces of %d", text, n)
		}
	}
}

func TestScreen(t *testing.T) {
	var out, err bytes.Buffer
	s := newScreen(&out, &err, nil)
	s.terminal = [2]bool{true, false}
	s.print(stdout, 0, []byte("10%"), true)
	s.print(stderr, 1, []byte("10%"), true) // is a file
	s.print(stdout, 7, []byte("line"), false)
	s.print(stdout, 1, []byte("line"), false)
	s.say("a\nb\n")
	require.Equal(t, "\x1b[31m[0]\x1b[0m 10%\r"+"\x1b[K\x1b[32m[7]\x1b[0m line\n"+"\x1b[32m[1]\x1b[0m line\n", out.String())
	require.Equal(t, "fsdprun: a\nfsdprun: b\n", err.String())
}

func TestTail(t *testing.T) {
	var l tail
	for range 20 {
		l.add([]byte(strings.Repeat("x", 2*tailLength)))
	}
	l.add([]byte("last"))
	require.Len(t, l.last(), tailLines)
	require.Equal(t, "last", l.last()[tailLines-1])
	require.Equal(t, strings.Repeat("x", tailLength)+"…", l.last()[0])
}

func FuzzSplitter(f *testing.F) {
	f.Add("a\r\nb\rc\n\r\r\n", uint8(1))
	f.Fuzz(func(t *testing.T, text string, n uint8) {
		whole := split(text, len(text)+1)
		require.Equal(t, whole, split(text, int(n)+1))
		require.LessOrEqual(t, len(whole), strings.Count(text, "\n")+strings.Count(text, "\r")+1)
	})
}
