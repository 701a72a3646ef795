package mesh

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// rollOf returns the roll of a mesh as a rank has it from pages that came in some order.
func rollOf(t require.TestingT, list []record, last int) *roll {
	var r roll
	pages := pagesOf(list, 0)
	for i := range pages {
		p := pages[(i+last)%len(pages)]
		require.LessOrEqual(t, len(p), MaxMessage)
		p, err := readPage([]byte(p), len(list))
		require.NoError(t, err)
		for _, first := range []bool{true, false} { // then by another way
			added, err := r.add(p)
			require.NoError(t, err)
			require.Equal(t, first, added)
		}
	}
	require.Equal(t, len(list), r.known)
	return &r
}

func TestPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3*pageRanks).Draw(t, "ranks")
		long := rapid.SampledFrom([]int{0, 30, 300}).Draw(t, "length of a name")
		list := make([]record, n)
		for r := range list {
			host := strings.Repeat("x", long) + fmt.Sprint(r/8)
			list[r] = record{process{Host: host, Name: host, PID: r * 13, Nonce: fmt.Sprint("nonce", r), Note: fmt.Sprint("note", r)}, r, 0, fmt.Sprint("10.0.0.1:", r), ""}
		}
		all := rollOf(t, list, rapid.IntRange(0, 9).Draw(t, "first page"))
		for r, who := range list {
			require.Equal(t, who, all.record(r))
		}
	})
}

// TestPageIsSmall is about 10,000 ranks, eight on each host.
func TestPageIsSmall(t *testing.T) {
	list := make([]record, 10_000)
	for r := range list {
		host := fmt.Sprintf("6f1d0a4c-%07d", r/8)
		list[r] = record{process{Host: host, Name: host, PID: 100_000 + r, Nonce: fmt.Sprintf("%026d", r)}, r, 0, fmt.Sprintf("10.20.%d.%d:40%03d", r>>8, r&255, r%1000), fmt.Sprintf("@gofsdp-%026d", r)}
	}
	bytes := 0
	for _, h := range rollOf(t, list, 0).pages {
		bytes += len(h.Value())
	}
	require.Less(t, bytes, 120*len(list))
}

// TestPagesOverlap has pages come that leave out a rank, and have as many as there are all the
// same.
func TestPagesOverlap(t *testing.T) {
	list := make([]record, 4)
	for _, order := range [][2]int{{1, 2}, {2, 1}} {
		var r roll
		_, err := r.add(pagesOf(list[:2], order[0])[0])
		require.NoError(t, err)
		_, err = r.add(pagesOf(list[:2], order[1])[0])
		require.ErrorIs(t, err, errPage)
		require.Equal(t, 2, r.known)
	}
}

// TestEarlyPage has the parent of a rank send a page before the rank is connected to its children:
// the connection ends.
func TestEarlyPage(t *testing.T) {
	m := newMesh(Config{Rank: 4, Size: many})
	p := &peer{m: m, rank: parent(4)}
	require.ErrorIs(t, m.hearRoll(p, []byte(pagesOf(make([]record, many), 0)[0])), errPage)
	require.Zero(t, m.roll.known)
}

// TestMalformedPage reads pages with some bytes changed: they are refused, or every field can be
// read.
func TestMalformedPage(t *testing.T) {
	good := []byte(pagesOf([]record{{TCP: "10.0.0.1:1"}, {TCP: "10.0.0.2:1"}}, 3)[0])
	rapid.Check(t, func(t *rapid.T) {
		bad := append([]byte(nil), good[:rapid.IntRange(0, len(good)).Draw(t, "length")]...)
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			if len(bad) > 0 {
				bad[rapid.IntRange(0, len(bad)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "value")
			}
		}
		p, err := readPage(bad, 5)
		if err != nil {
			require.ErrorIs(t, err, errPage)
			return
		}
		for i := range p.count() {
			require.Less(t, p.first()+i, 5)
			for f := range pageFields {
				_ = p.field(i, f)
			}
		}
	})
}
