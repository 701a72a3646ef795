package monitor

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"testing/synctest"
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

func example() progress {
	return progress{step: 412, steps: 1600, done: 412. / 1600, hasLoss: true, curve: "loss", loss: 2.1239, left: 102 * time.Second,
		elapsed: 35 * time.Second, rest: []string{"41.2k tok/s", "33.9 MB/rank", "lr 0.0028"}}
}

func TestProgressLine(t *testing.T) {
	for width, want := range map[int]string{
		120: "██████▏░░░░░░░░░░░░░░░░░   412/1600  loss 2.124  left 1m42s  41.2k tok/s  33.9 MB/rank  lr 0.0028",
		80:  "█▊░░░░░   412/1600  loss 2.124  left 1m42s  41.2k tok/s  33.9 MB/rank  lr 0.0028",
		77:  "███▉░░░░░░░░░░░   412/1600  loss 2.124  left 1m42s  41.2k tok/s  33.9 MB/rank",
		40:  "█▎░░░   412/1600  loss 2.124  left 1m42s",
		22:  " 412/1600  loss 2.124",
		10:  " 412/1600 ",
	} {
		require.Equal(t, want, example().line(width))
	}
	p := example()
	p.estimated = true
	require.Contains(t, p.line(80), "412/~1600")
	p.hasLoss = false
	require.Contains(t, p.line(80), "412/~1600  left")
	p.steps = 0
	require.Equal(t, "step 412  35s  41.2k tok/s  33.9 MB/rank  lr 0.0028", p.line(80), "nobody knows the end")
}

func TestProgressLog(t *testing.T) {
	require.Equal(t, "step  412/1600  loss 2.1239  left 1m42s  41.2k tok/s  33.9 MB/rank", example().log())
	p := example()
	p.step, p.steps = 7, 40
	require.Equal(t, "step  7/40  loss 2.1239  left 1m42s  41.2k tok/s  33.9 MB/rank  lr 0.0028", p.log())
	p.steps = 0
	require.Equal(t, "step 7  loss 2.1239  35s  41.2k tok/s  33.9 MB/rank  lr 0.0028", p.log())
}

func TestProgressLineFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := progress{
			step: rapid.IntRange(1, 1e9).Draw(t, "step"), steps: rapid.IntRange(0, 1e9).Draw(t, "steps"),
			done: rapid.Float64Range(-1, 2).Draw(t, "done"), loss: rapid.Float64().Draw(t, "loss"),
			curve: rapid.String().Draw(t, "curve"), hasLoss: rapid.Bool().Draw(t, "has loss"),
			estimated: rapid.Bool().Draw(t, "estimated"), rest: rapid.SliceOf(rapid.String()).Draw(t, "rest"),
		}
		width := rapid.IntRange(-1, 200).Draw(t, "width")
		require.LessOrEqual(t, utf8.RuneCountInString(p.line(width)), max(width, 0))
	})
}

func TestCurve(t *testing.T) {
	var train []Point
	for step := 1; step <= 100; step++ {
		train = append(train, Point{step, 1.5 + 4*math.Exp(-float64(step)/15)})
	}
	c := curve{train: train, validation: []Point{{50, 1.7}, {100, 1.6}}, name: "loss", unit: "nats per byte", width: 50, height: 7}
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
	require.Empty(t, curve{width: 80, height: 10}.String())
	one := []Point{{1, 2}}
	require.Empty(t, curve{train: one, width: 3, height: 10}.String())
	require.Empty(t, curve{train: one, width: 80}.String())
	require.Empty(t, curve{train: []Point{{1, math.NaN()}}, width: 80, height: 10}.String())
	require.Contains(t, curve{train: one, width: 80, height: 10}.String(), "2.00")
}

// TestCurveOfAnything: what is not positive has no logarithm.
func TestCurveOfAnything(t *testing.T) {
	require.Equal(t, ""+
		" reward: ⠒⠒ train  ● validation\n"+
		"  3.25 ┤           ⣀⣀⡠⠤⠤⠒⠒⠊\n"+
		"       │⣀⣀⣀⠤⠤⠔⠒⠒⠉⠉⠉\n"+
		"       └┬────────┬────────┬\n"+
		"        0 steps  1        2\n", curve{train: []Point{{0, -2}, {2, 5}}, name: "reward", width: 28, height: 2}.String())
	for v, want := range map[float64]string{
		0: "0.00", 0.0123: "0.012", -0.5: "-0.50", 12.345: "12.3", -345.6: "-346", 1234567: "1e+06", -0.00012: "-1e-04", 1e300: "1e+300",
	} {
		require.Equal(t, want, label(v))
		require.LessOrEqual(t, len(label(v)), 6)
	}
}

func TestCurveFits(t *testing.T) {
	points := rapid.SliceOfN(rapid.Float64Range(-1e2, 1e3), 1, 50)
	rapid.Check(t, func(t *rapid.T) {
		c := curve{name: "loss", width: rapid.IntRange(20, 120).Draw(t, "width"), height: rapid.IntRange(1, 12).Draw(t, "height")}
		for i, loss := range points.Draw(t, "train") {
			c.train = append(c.train, Point{i + 1, loss})
		}
		for i, loss := range points.Draw(t, "validation") {
			c.validation = append(c.validation, Point{3 * i, loss})
		}
		lines := strings.Split(strings.TrimSuffix(c.String(), "\n"), "\n")
		require.Len(t, lines, c.height+3)
		for _, l := range lines[1:] {
			require.LessOrEqual(t, utf8.RuneCountInString(l), c.width)
		}
		c.color = true
		require.Equal(t, strings.Join(lines, "\n")+"\n", plain(c.String()))
	})
}

// TestThin checks that a point stands for the steps up to the next one, however often a curve was
// thinned while it grew.
func TestThin(t *testing.T) {
	require.Equal(t, []Point{{1, 3}, {2, 2}, {3, 4}}, thin([]Point{{1, 3}, {2, 2}, {3, 4}}, 3))
	require.Equal(t, []Point{{1, 2.5}, {3, 4.5}}, thin([]Point{{1, 3}, {2, 2}, {3, 4}, {4, 5}}, 2))
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 50).Draw(t, "n")
		var points []Point
		steps := rapid.IntRange(1, 1000).Draw(t, "steps")
		for step := 1; step <= steps; step++ {
			points = append(points, Point{step, float64(step)})
			if rapid.IntRange(0, 20).Draw(t, "thin") == 0 {
				points = thin(points, n)
			}
		}
		thin := thin(points, n)
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
	return strings.NewReplacer(reset, "", cyan, "", yellow, "", dim, "").Replace(s)
}

// show draws p as Step does.
func (s *Screen) show(p progress) {
	if s.due(p.done, p.elapsed) {
		s.draw(p)
	}
}

func TestScreenOnTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		s := newScreen(&b, func() int { return 41 }, false)
		take := func() string { defer b.Reset(); return b.String() }

		line := example().line(40)
		s.show(example())
		require.Equal(t, "\r"+line+"\x1b[K", take())
		time.Sleep(redrawEvery / 2)
		s.show(example())
		require.Empty(t, take(), "too soon")
		time.Sleep(redrawEvery)
		s.show(example())
		require.Equal(t, "\r"+line+"\x1b[K", take())
		s.Printf("validation %d\n", 1)
		require.Equal(t, "\r\x1b[Kvalidation 1\n", take())
		s.show(example())
		require.Equal(t, "\r"+line+"\x1b[K", take(), "back at once")
	})
}

// TestScreenAsLog counts the lines of runs of a second a step.
func TestScreenAsLog(t *testing.T) {
	for _, c := range []struct {
		about        string
		steps, lines int
		known        bool
	}{
		{"a short run", 1000, 1 + logLines, true},
		{"a day", 86400, 1 + 8*logLines, true}, // one line at each twentieth, and seven ten minutes apart in between
		{"an hour without a known end", 3600, 39, false},
		{"a day without a known end", 86400, 177, false},
	} {
		var b bytes.Buffer
		s := newScreen(&b, nil, false)
		for step := 1; step <= c.steps; step++ {
			p := progress{step: step, elapsed: time.Duration(step) * time.Second}
			if c.known {
				p.steps, p.done = c.steps, float64(step)/float64(c.steps)
			}
			s.show(p)
		}
		require.Equal(t, c.lines, strings.Count(b.String(), "\n"), c.about)
		require.NotContains(t, b.String(), "\x1b")
		require.Equal(t, LogColumns, s.Width())
	}
}

func TestScreenColor(t *testing.T) {
	require.Equal(t, "plan", newScreen(nil, nil, false).Title("plan"))
	require.Equal(t, "\x1b[1mplan\x1b[0m", newScreen(nil, nil, true).Title("plan"))
}

func TestCrossed(t *testing.T) {
	n := 0
	for i := range 10 { // ten steps pass ten tenths, for all that 0.1 is not a binary fraction
		if crossed(float64(i)*0.1, float64(i+1)*0.1, 10) {
			n++
		}
	}
	require.Equal(t, 10, n)
	require.False(t, crossed(0.13, 0.24, 4))
	require.True(t, crossed(0.13, 0.26, 4))
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
