package monitor

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNumbers(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1 000", -1234567: "-1 234 567", -123: "-123"} {
		require.Equal(t, want, Count(n))
	}
	for n, want := range map[int]string{0: "0 B", 999: "999 B", 1000: "1.00 kB", 12345678: "12.3 MB", 999600: "1.00 MB", 2e9: "2.00 GB"} {
		require.Equal(t, want, Bytes(n))
	}
	require.Equal(t, "12.3k tok/s", Rate(12345, "tok"))
	require.Equal(t, "3.14 tok/s", Rate(math.Pi, "tok"))
	for d, want := range map[time.Duration]string{
		400 * time.Millisecond: "0s", 59500 * time.Millisecond: "1m00s", 151 * time.Second: "2m31s", 62 * time.Minute: "1h02m",
	} {
		require.Equal(t, want, Duration(d))
	}
}

func example() Progress {
	return Progress{Step: 412, Steps: 1600, Done: 412. / 1600, Loss: 2.1239, Speed: 41230, Memory: 33.9e6, LR: 2.8e-3, Left: 102 * time.Second}
}

func TestProgressLine(t *testing.T) {
	for width, want := range map[int]string{
		120: "██████▏░░░░░░░░░░░░░░░░░   412/1600  loss 2.124  left 1m42s  41.2k tok/s  33.9 MB/rank  lr 2.8e-03",
		80:  "█▌░░░░   412/1600  loss 2.124  left 1m42s  41.2k tok/s  33.9 MB/rank  lr 2.8e-03",
		77:  "███▉░░░░░░░░░░░   412/1600  loss 2.124  left 1m42s  41.2k tok/s  33.9 MB/rank",
		40:  "█▎░░░   412/1600  loss 2.124  left 1m42s",
		22:  " 412/1600  loss 2.124",
		10:  " 412/1600 ",
	} {
		require.Equal(t, want, example().Line(width))
	}
	p := example()
	p.Estimated = true
	require.Contains(t, p.Line(80), "412/~1600")
	p.Saving, p.Saved = 12e6, 3.4e6
	require.Equal(t, "████▏░░░░░░░░░░░   412/~1600  loss 2.124  saving 3.40 MB of 12.0 MB  left 1m42s", p.Line(79))
}

func TestProgressLog(t *testing.T) {
	require.Equal(t, "step  412/1600  loss 2.1239  left 1m42s  41.2k tok/s  33.9 MB/rank", example().Log())
	p := example()
	p.Saving = 12e6
	require.Equal(t, "step  412/1600  loss 2.1239  saving 0 B of 12.0 MB  left 1m42s  41.2k tok/s", p.Log())
	p = Progress{Step: 7, Steps: 40, Loss: 2.1239, Speed: 41234, Memory: 33.9e6, LR: 0.0028, Left: 9 * time.Second}
	require.Equal(t, "step  7/40  loss 2.1239  left 9s  41.2k tok/s  33.9 MB/rank  lr 2.8e-03", p.Log())
}

func TestProgressLineFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Progress{
			Step: rapid.IntRange(1, 1e9).Draw(t, "step"), Steps: rapid.IntRange(1, 1e9).Draw(t, "steps"),
			Done: rapid.Float64Range(-1, 2).Draw(t, "done"), Loss: rapid.Float64().Draw(t, "loss"),
			Memory: rapid.IntRange(0, 1e15).Draw(t, "memory"), Estimated: rapid.Bool().Draw(t, "estimated"),
			Saving: rapid.IntRange(0, 1e15).Draw(t, "saving"),
		}
		width := rapid.IntRange(-1, 200).Draw(t, "width")
		require.LessOrEqual(t, utf8.RuneCountInString(p.Line(width)), max(width, 0))
	})
}

func TestCurve(t *testing.T) {
	var train []Point
	for step := 1; step <= 100; step++ {
		train = append(train, Point{step, 1.5 + 4*math.Exp(-float64(step)/15)})
	}
	c := Curve{Train: train, Validation: []Point{{50, 1.7}, {100, 1.6}}, Unit: "byte", Width: 50, Height: 7}
	require.Equal(t, ""+
		"   loss in nats per byte, logarithmic: ⠒⠒ train  ● validation\n"+
		"  4.80 ┤⠑⢄\n"+
		"       │  ⠣⡀\n"+
		"       │   ⠈⠢⡀\n"+
		"  2.81 ┤     ⠈⠢⢄\n"+
		"       │        ⠉⠢⢄\n"+
		"       │           ⠉⠑⠢⢄⣀⡀\n"+
		"  1.65 ┤                ⠈⠉⠑⠒●⠢⠤⠤⠤⠤⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀●\n"+
		"       └┬───────────────────┬───────────────────┬\n"+
		"        0 steps            50                 100\n", c.String())
}

func TestCurveOfNothing(t *testing.T) {
	require.Empty(t, Curve{Width: 80, Height: 10}.String())
	one := []Point{{1, 2}}
	require.Empty(t, Curve{Train: one, Width: 3, Height: 10}.String())
	require.Empty(t, Curve{Train: one, Width: 80}.String())
	require.Empty(t, Curve{Train: []Point{{1, math.NaN()}}, Width: 80, Height: 10}.String())
	require.Contains(t, Curve{Train: one, Width: 80, Height: 10}.String(), "2.00")
}

func TestCurveFits(t *testing.T) {
	points := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e3), 1, 50)
	rapid.Check(t, func(t *rapid.T) {
		c := Curve{Width: rapid.IntRange(20, 120).Draw(t, "width"), Height: rapid.IntRange(1, 12).Draw(t, "height")}
		for i, loss := range points.Draw(t, "train") {
			c.Train = append(c.Train, Point{i + 1, loss})
		}
		for i, loss := range points.Draw(t, "validation") {
			c.Validation = append(c.Validation, Point{3 * i, loss})
		}
		lines := strings.Split(strings.TrimSuffix(c.String(), "\n"), "\n")
		require.Len(t, lines, c.Height+3)
		for _, l := range lines[1:] {
			require.LessOrEqual(t, utf8.RuneCountInString(l), c.Width)
		}
		c.Color = true
		require.Equal(t, strings.Join(lines, "\n")+"\n", plain(c.String()))
	})
}

// TestThin checks that a point stands for the steps up to the next one, however often a curve was
// thinned while it grew.
func TestThin(t *testing.T) {
	require.Equal(t, []Point{{1, 3}, {2, 2}, {3, 4}}, Thin([]Point{{1, 3}, {2, 2}, {3, 4}}, 3))
	require.Equal(t, []Point{{1, 2.5}, {3, 4.5}}, Thin([]Point{{1, 3}, {2, 2}, {3, 4}, {4, 5}}, 2))
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 50).Draw(t, "n")
		var points []Point
		steps := rapid.IntRange(1, 1000).Draw(t, "steps")
		for step := 1; step <= steps; step++ {
			points = append(points, Point{step, float64(step)})
			if rapid.IntRange(0, 20).Draw(t, "thin") == 0 {
				points = Thin(points, n)
			}
		}
		thin := Thin(points, n)
		require.LessOrEqual(t, len(thin), n)
		require.Equal(t, 1, thin[0].Step)
		for i, p := range thin {
			end := steps + 1
			if i+1 < len(thin) {
				end = thin[i+1].Step
			}
			require.GreaterOrEqual(t, p.Loss, float64(p.Step))
			require.Less(t, p.Loss, float64(end))
		}
	})
}

// plain takes the colours out of s.
func plain(s string) string {
	return strings.NewReplacer(reset, "", cyan, "", yellow, "").Replace(s)
}

func TestScreenOnTerminal(t *testing.T) {
	var b bytes.Buffer
	s := NewScreen(&b, func() int { return 41 }, false)
	now := time.Unix(0, 0)
	s.now = func() time.Time { return now }
	take := func() string { defer b.Reset(); return b.String() }

	line := example().Line(40)
	s.Progress(example())
	require.Equal(t, "\r"+line+"\x1b[K", take())
	now = now.Add(redrawEvery / 2)
	s.Progress(example())
	require.Empty(t, take(), "too soon")
	now = now.Add(redrawEvery)
	s.Progress(example())
	require.Equal(t, "\r"+line+"\x1b[K", take())
	s.Printf("validation %d\n", 1)
	require.Equal(t, "\r\x1b[Kvalidation 1\n", take())
	s.Progress(example())
	require.Equal(t, "\r"+line+"\x1b[K", take(), "back at once")
}

func TestScreenAsLog(t *testing.T) {
	var b bytes.Buffer
	s := NewScreen(&b, nil, false)
	for step := 1; step <= 1000; step++ {
		s.Progress(Progress{Step: step, Steps: 1000, Done: float64(step) / 1000})
	}
	require.Equal(t, 1+logLines, strings.Count(b.String(), "\n"))
	require.NotContains(t, b.String(), "\x1b")
	require.Equal(t, LogColumns, s.Width())
}

func TestScreenColor(t *testing.T) {
	require.Equal(t, "plan", NewScreen(nil, nil, false).Title("plan"))
	require.Equal(t, "\x1b[1mplan\x1b[0m", NewScreen(nil, nil, true).Title("plan"))
}

func TestCrossed(t *testing.T) {
	n := 0
	for i := range 10 { // ten steps pass ten tenths, for all that 0.1 is not a binary fraction
		if Crossed(float64(i)*0.1, float64(i+1)*0.1, 10) {
			n++
		}
	}
	require.Equal(t, 10, n)
	require.False(t, Crossed(0.13, 0.24, 4))
	require.True(t, Crossed(0.13, 0.26, 4))
}

func TestFilter(t *testing.T) {
	var b bytes.Buffer
	f := Filter{W: &b}
	for _, c := range []byte("func\tx() {\n\x1b[2J\x00 é €\xff}") { // byte by byte
		_, err := f.Write([]byte{c})
		require.NoError(t, err)
	}
	require.Equal(t, "func\tx() {\n·[2J· é €·}", b.String())
}

func TestFilterIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		f := Filter{W: &b}
		for _, piece := range rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "pieces") {
			_, err := f.Write(piece)
			require.NoError(t, err)
		}
		require.True(t, utf8.Valid(b.Bytes()))
		require.False(t, strings.ContainsFunc(b.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }))
	})
}
