package checkpoint_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

// TestChoose saves three checkpoints, removes a file of some, and rejects the choice as often as a
// policy has another one.
func TestChoose(t *testing.T) {
	const (
		one, two, three = dir + "/000001-step-1", dir + "/000002-step-2", dir + "/000003-step-3"
		none            = "no older checkpoint is whole"
	)
	isOlder := func(path string) string { return path + " is older and complete, but its data is not checked" }
	for name, c := range map[string]struct {
		dir     string
		missing []string // checkpoints without a file
		policy  checkpoint.Policy
		chosen  []string // in this order
		refused string   // the end of the error
		older   string   // in the error
	}{
		"whole":                          {dir, nil, checkpoint.SkipIncomplete, []string{three}, isOlder(two), two},
		"whole, skip damaged":            {dir, nil, checkpoint.SkipDamaged, []string{three, two, one}, "no older checkpoint can be loaded: checkpoint: no whole checkpoint in " + dir, ""},
		"whole, skip none":               {dir, nil, checkpoint.SkipNone, []string{three}, isOlder(two), two},
		"last incomplete":                {dir, []string{three}, checkpoint.SkipIncomplete, []string{two}, isOlder(one), one},
		"last incomplete, skip damaged":  {dir, []string{three}, checkpoint.SkipDamaged, []string{two, one}, "no whole checkpoint in " + dir, ""},
		"last incomplete, skip none":     {dir, []string{three}, checkpoint.SkipNone, nil, isOlder(two), two},
		"first incomplete, skip damaged": {dir, []string{one}, checkpoint.SkipDamaged, []string{three, two}, "file does not exist)", ""},
		"all incomplete":                 {dir, []string{one, two, three}, checkpoint.SkipDamaged, nil, none, ""},
		"itself":                         {two, nil, checkpoint.SkipIncomplete, []string{two}, one + " is older: load it by its path", ""},
		"itself, skip damaged":           {two, nil, checkpoint.SkipDamaged, []string{two}, one + " is older: load it by its path", ""},
		"itself, incomplete":             {three, []string{three}, checkpoint.SkipDamaged, nil, two + " is older: load it by its path", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := crashfs.New()
			for step := 1; step <= 3; step++ {
				mustSave(t, f, step, 3)
			}
			for _, path := range c.missing {
				require.NoError(t, f.RemoveAll(path+"/"+checkpoint.FileName("rank", 0, world)))
			}
			var rejected *checkpoint.Entry
			var chosen []string
			for {
				found, err := checkpoint.Choose(ctx, f, c.dir, c.policy, rejected)
				if err != nil {
					require.Equal(t, c.chosen, chosen)
					require.True(t, strings.HasSuffix(err.Error(), c.refused), err)
					var refused *checkpoint.RefusedError
					require.ErrorAs(t, err, &refused)
					require.Equal(t, c.older, refused.Older)
					require.NotErrorIs(t, err, checkpoint.ErrNone)
					return
				}
				if rejected != nil {
					last := found.Passed[0]
					require.Equal(t, rejected.Err, last.Err)
					require.Equal(t, rejected.Path, last.Path)
					require.Equal(t, rejected.Path, fmt.Sprintf("%s/%06d-step-%d", dir, last.Sequence, last.Step))
				}
				chosen = append(chosen, found.Path)
				rejected = &checkpoint.Entry{Path: found.Path, Err: errors.New("bad sums")}
			}
		})
	}
}
