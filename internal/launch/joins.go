package launch

import (
	"errors"
	"io/fs"
	"os"
)

// Joins is the variable through which fsdprun learns how far a rank is in joining the others. Its
// value is the name of the rank's files without their endings. Fsdprun removes their directory when
// all ranks of the host have joined.
const Joins = "FSDP_JOINS"

// The endings of the files of a rank.
const (
	joining = ".joining" // it waits for the others
	joined  = ".joined"
	failed  = ".failed" // it could not join
)

// Joining reports to fsdprun, if name is not "", that this process joins a job. The caller must
// call done with the outcome, even after an error.
func Joining(name string) (done func(failure error) error, err error) {
	if name != "" {
		err = unlessGone(os.WriteFile(name+joining, nil, 0o600))
	}
	if name == "" || err != nil {
		return func(error) error { return nil }, err
	}
	return func(failure error) error {
		end := joined
		if failure != nil {
			end = failed
		}
		return unlessGone(os.Rename(name+joining, name+end))
	}, nil
}

// unlessGone drops the error of a file whose directory fsdprun has removed.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Join is how far a rank is in joining the others.
type Join uint8

// How far a rank is.
const (
	JoinUnknown Join = iota // nothing is known
	JoinNever               // it has not begun to join
	JoinWaits               // it waits for the others
	JoinFailed
	Joined // once, at least
)

// ReadJoin returns how far the rank is whose variable Joins is name.
func ReadJoin(name string) (Join, error) {
	for _, end := range []struct {
		suffix string
		Join
	}{{joined, Joined}, {joining, JoinWaits}, {failed, JoinFailed}} {
		_, err := os.Stat(name + end.suffix)
		if err == nil {
			return end.Join, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return JoinUnknown, err
		}
	}
	return JoinNever, nil
}
