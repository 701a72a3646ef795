package monitor

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// writeRows writes steps of a run to w, an evaluation after each tenth, and closes it.
func writeRows(t *testing.T, w Writer, from, to int) {
	require.NoError(t, w.Open(from))
	for step := from + 1; step <= to; step++ {
		now := time.Unix(int64(step), 0)
		loss := 1 + 4*math.Exp(-float64(step)/20) + 0.1*float64(step%3)
		require.NoError(t, w.Write(&Row{Step: step, Time: now, Values: []Value{
			{"lr", 0.1}, {"loss", loss}, {"run/units_per_second", 5000 + float64(step)}, {"run/memory", 1e6}, {"other", math.NaN()},
		}}))
		if step%10 == 0 {
			require.NoError(t, w.Write(&Row{Step: step, Time: now, Values: []Value{{"validation/loss", loss + 0.2}}}))
		}
	}
	require.NoError(t, w.Close())
}

// TestSVG checks that the picture is well formed and has all parts, and that a resumed run draws
// the same picture as a run without a break.
func TestSVG(t *testing.T) {
	dir := t.TempDir()
	whole, parts := filepath.Join(dir, "whole", "run.svg"), filepath.Join(dir, "parts", "run.svg")
	writeRows(t, SVG(whole), 0, 100)
	writeRows(t, SVG(parts), 0, 70)
	writeRows(t, SVG(parts), 50, 100) // the checkpoint was at step 50
	want, err := os.ReadFile(whole)
	require.NoError(t, err)
	got, err := os.ReadFile(parts)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
	for d := xml.NewDecoder(strings.NewReader(string(want))); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	for _, part := range []string{">loss<", "validation, lowest 1.24 at step 90<", ">units per second<", ">memory of a rank<", "<polygon", ">5.10k<", ">1.00 MB<"} {
		require.Contains(t, string(want), part)
	}
}

// TestSVGOfEarlierRun: a new run moves the picture of an earlier one, and another file is an error.
func TestSVGOfEarlierRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.svg")
	writeRows(t, SVG(path), 0, 10)
	writeRows(t, SVG(path), 0, 20)
	require.FileExists(t, filepath.Join(filepath.Dir(path), "earlier-1", "run.svg"))
	require.NoError(t, os.WriteFile(path, []byte("<svg/>"), 0o600))
	require.ErrorContains(t, SVG(path).Open(5), path+" is not a picture of a monitor")
}

// TestNoisyCurve: the line is smooth, the range is behind it, and validation has a line of its own.
func TestNoisyCurve(t *testing.T) {
	var train []Point
	for step := 1; step <= 400; step++ {
		train = append(train, Point{step, 2 + math.Exp(-float64(step)/100) + 0.5*math.Sin(float64(step*step))})
	}
	c := curve{train: train, validation: []Point{{100, 2.8}, {250, 2.5}, {400, 2.3}}, name: "loss", width: 60, height: 8}
	require.Equal(t, `
   loss, logarithmic: ⠒⠒ train  ● validation
  3.24 ┤⡀·····
       │⢇⡀·········· ··
       │·⠈⠉⠑⠢⠤⠢⠤⣀⢄⣀·●·⠁⠈·⠁⠐·⠂⠐·⠄⠠·⠄⢀·⡀⢀··   ·  · ··
  2.40 ┤··········⠈⠢⠤⢄⡀··⡠⡠⡀···········●·⠁⠈·⠁⠈·⠂⠐·⠂⠐·⠄⠠·⠄⠠●
       │   ···········⠈⠒⠊··⠱⡠⣀⠎⠑⠑⡄·⢀⠔⠒⠤⢄⣀⡀·····⢀⣀⣀⣀⢄⣀⣀⣀⣀⢀··
       │        · ········ ······⠈⠉⠃·····⠑⠔⠔⠒⠉⠊⠁········⠁⠑⠊
  1.77 ┤             · ··· ···· ···························
       │                         ··························
       └┬────────────────────────┬────────────────────────┬
        0 steps                 200                     400
`, "\n"+c.String())
}
