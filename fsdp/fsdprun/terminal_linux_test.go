package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openTerminal returns the two ends of a pseudo-terminal: what a screen shows, and what programs write to.
func openTerminal(t *testing.T, columns uint16) (screen, program *os.File) {
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: columns}))
	return screen, program
}

// seen returns the lines that a terminal shows after it was written text.
func seen(text string, columns int) (lines []string) {
	text = regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(text, "") // colours
	line, at := []rune(nil), 0
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b[K"); ok {
			line, text = line[:min(at, len(line))], rest
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch {
		case r == '\r':
			at = 0
		case r == '\n':
			lines, line = append(lines, string(line)), nil
		default:
			if at == columns {
				lines, line, at = append(lines, string(line)), nil, 0
			}
			if at == len(line) {
				line = append(line, ' ')
			}
			line[at] = r
			at++
		}
	}
	return append(lines, string(line))
}

// TestMonitors: the live monitors of two ranks share a terminal. A progress line overwrites the other,
// and leaves nothing behind; lines stay whole.
func TestMonitors(t *testing.T) {
	const columns = 70
	screen, program := openTerminal(t, columns)
	var shown bytes.Buffer
	var reader sync.WaitGroup
	reader.Go(func() { io.Copy(&shown, screen) }) // until nobody has the other end open: an error on Linux
	var err output
	status := run([]string{"-n", "2", os.Args[0]}, system{
		in: strings.NewReader(""), out: program, err: &err, environ: append(os.Environ(), scriptVariable+"=watched"),
	})
	require.NoError(t, program.Close())
	reader.Wait()
	require.NoError(t, screen.Close())
	require.Zero(t, status, &err)

	lines := seen(shown.String(), columns)
	for rank := range 2 {
		progress := regexp.MustCompile(fmt.Sprintf(`\[%d\]\S* \S*[█▏▎▍▌▋▊▉░]+  (30|.\d)/30`, rank)).FindAllString(shown.String(), -1)
		require.Len(t, progress, 30, "drawn")
		for i := range 30 {
			require.Contains(t, lines, fmt.Sprintf("[%d] note %d", rank, i))
		}
		require.Contains(t, lines, fmt.Sprintf("[%d] result", rank))
	}
	require.Len(t, regexp.MustCompile(`(?m)^\[[01]\] note \d+$`).FindAllString(strings.Join(lines, "\n"), -1), 60)
	for _, line := range lines {
		require.NotContains(t, line, "/30", "progress is gone")
		require.Regexp(t, `^$|^\[[01]\] `, line, "nothing is in two lines")
	}
}
