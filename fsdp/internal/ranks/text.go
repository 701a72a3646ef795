package ranks

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
)

// Same returns an error on every rank unless all ranks have the same text. It names the first line
// that differs. While texts are equal, only their hashes travel.
func (a *Agreement) Same(ctx context.Context, what, text string) error {
	if a.group.Size() == 1 {
		return nil
	}
	sum := sha256.Sum256([]byte(text))
	mine := int64(binary.LittleEndian.Uint64(sum[:]) >> 1)
	w := []int64{mine, flip(mine)}
	if err := a.reduce(ctx, w); err != nil {
		return &LostError{fmt.Errorf("comparing the %s: %w", what, err)}
	}
	if w[0] == flip(w[1]) {
		return nil
	}
	d, err := a.differ(ctx, 0, mine, text)
	if err != nil {
		return &LostError{fmt.Errorf("comparing the %s: %w", what, err)}
	}
	x, y := strings.Split(d.first, "\n"), strings.Split(d.other, "\n")
	i := 0
	for i < len(x) && i < len(y) && x[i] == y[i] {
		i++
	}
	first, other := parting(line(x, i), line(y, i))
	return fmt.Errorf("ranks disagree about the %s: rank 0 has %q, rank %d has %q: give all ranks the same", what, first, d.rank, other)
}

// difference is the texts of two ranks that have different numbers.
type difference struct {
	rank         int // the second
	first, other string
}

// differ finds the first rank whose number differs from the number of rank measure, and gets the
// texts of both. There is such a rank.
func (a *Agreement) differ(ctx context.Context, measure int, mine int64, text string) (d difference, err error) {
	n := a.group.Size()
	theirs := []int64{mine}
	if err := a.group.Broadcast(comm.Of(theirs).Named(label), measure).Wait(ctx); err != nil {
		return d, err
	}
	other := []int64{0}
	if mine != none && theirs[0] != mine {
		other[0] = int64(n - a.group.Rank())
	}
	if err := a.reduce(ctx, other); err != nil {
		return d, err
	}
	d.rank = n - int(other[0])
	if d.first, err = a.text(ctx, measure, text); err == nil {
		d.other, err = a.text(ctx, d.rank, text)
	}
	return d, err
}

// text returns the text of rank root. mine is this rank's text.
func (a *Agreement) text(ctx context.Context, root int, mine string) (string, error) {
	length := []int64{int64(len(mine))}
	if err := a.group.Broadcast(comm.Of(length).Named(label), root).Wait(ctx); err != nil {
		return "", err
	}
	text := []byte(mine)
	if root != a.group.Rank() {
		text = make([]byte, length[0])
	}
	err := a.group.Broadcast(comm.Of(text).Named(label), root).Wait(ctx)
	return string(text), err
}

// Tell returns the bytes of rank root on every rank. mine is read on root only. Ranks must have
// agreed to call Tell.
func (a *Agreement) Tell(ctx context.Context, root int, mine []byte) ([]byte, error) {
	text, err := a.text(ctx, root, string(mine))
	if err != nil {
		return nil, &LostError{err}
	}
	return []byte(text), nil
}

func line(lines []string, i int) string {
	if i < len(lines) && !slices.Equal(lines[i:], []string{""}) {
		return lines[i]
	}
	return "nothing"
}

// parting returns the beginnings of two lines. For long lines it adds the text around the first
// difference.
func parting(a, b string) (string, string) {
	const head, around = 60, 40
	at := 0
	for at < len(a) && at < len(b) && a[at] == b[at] {
		at++
	}
	cut := func(s string) string {
		if at > head+around {
			s = s[:head] + " … " + s[at-around:]
			if end := head + 5 + 2*around; len(s) > end {
				s = s[:end] + "…"
			}
		} else if end := at + around; len(s) > max(end, 2*head) {
			s = s[:max(end, 2*head)] + "…"
		}
		return strings.ToValidUTF8(s, "…")
	}
	return cut(a), cut(b)
}

// offset and prime are the parameters of the 64-bit FNV-1a hash (Fowler, Noll and Vo), computed
// here without an allocation.
const (
	offset = 14695981039346656037
	prime  = 1099511628211
)

// hash adds a text to h, and its end, so that texts in a row cannot be divided in two ways.
func hash(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * prime
	}
	return (h ^ 0xFF) * prime
}

// mix adds a number to h.
func mix(h, v uint64) uint64 {
	for ; ; v >>= 8 {
		h = (h ^ v&0xFF) * prime
		if v < 0x100 {
			return hash(h, "")
		}
	}
}
