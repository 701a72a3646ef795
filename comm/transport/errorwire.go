package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/text"
)

// wireError is the form in which a group's error travels to the other ranks. It keeps the types of
// the package and the sentinels that callers test for. Other errors arrive as text only.
type wireError struct {
	Group    string     `json:",omitempty"`
	Rank     int        `json:",omitempty"`
	Text     string     `json:",omitempty"` // of the cause, for a RankError
	Is       []string   `json:",omitempty"` // names of the sentinels that the cause wraps
	Mismatch *wireCalls `json:",omitempty"` // instead of Rank and Text
}

type wireCalls struct {
	Seq   uint64
	Ranks [2]int
	Calls [2]string
}

// sentinels are the errors that keep their identity on the wire, by name.
var sentinels = []struct {
	name string
	err  error
}{
	{"closed", ErrClosed},
	{"invalid", ErrInvalid},
	{"timeout", ErrTimeout},
	{"lost", ErrLost},
	{"damaged", ErrDamaged},
	{"canceled", context.Canceled},
	{"deadline", context.DeadlineExceeded},
}

// Bounds of an error's texts on the wire, in bytes: of the cause, which may hold a
// stack, and of names and calls. As JSON they may become six times as long, and
// the whole has to fit a message of the mesh.
const (
	maxErrorText = 8 << 10
	maxErrorName = 1 << 10
)

// MarshalError encodes the failure of a group, a [*RankError] or a
// [*MismatchError], for the other ranks. Any other error is encoded as the
// failure of the given rank.
func MarshalError(group string, rank int, err error) []byte {
	var w wireError
	var mismatch *MismatchError
	var blame *RankError
	switch {
	case errors.As(err, &blame): // that wraps a MismatchError, perhaps of another group
		w = wireError{Group: blame.Group, Rank: blame.Rank}
		if blame.Err != nil {
			err = blame.Err
		}
	case errors.As(err, &mismatch):
		w = wireError{Group: mismatch.Group, Mismatch: &wireCalls{mismatch.Seq, mismatch.Ranks, mismatch.Calls}}
		for i := range w.Mismatch.Calls {
			w.Mismatch.Calls[i] = text.Cut(w.Mismatch.Calls[i], maxErrorName)
		}
	default:
		w = wireError{Group: group, Rank: rank}
	}
	w.Group = text.Cut(w.Group, maxErrorName)
	if w.Mismatch == nil {
		w.Text = text.Cut(err.Error(), maxErrorText)
		for _, s := range sentinels {
			if errors.Is(err, s.err) {
				w.Is = append(w.Is, s.name)
			}
		}
	}
	b, jerr := json.Marshal(w)
	if jerr != nil { // strings and integers cannot fail
		panic(jerr)
	}
	return b
}

// UnmarshalError decodes the result of [MarshalError]. The first error it returns
// is the decoded one.
func UnmarshalError(b []byte) (failure, err error) {
	var w wireError
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, fmt.Errorf("comm: decoding an error: %w", err)
	}
	if m := w.Mismatch; m != nil {
		return &MismatchError{w.Group, m.Seq, m.Ranks, m.Calls}, nil
	}
	cause := &remoteError{text: w.Text}
	for _, name := range w.Is {
		for _, s := range sentinels {
			if s.name == name {
				cause.is = append(cause.is, s.err)
			}
		}
	}
	return &RankError{w.Group, w.Rank, cause}, nil
}

// remoteError is the cause of another rank's failure: the parts that travel.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }
