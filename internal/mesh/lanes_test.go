package mesh

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// on returns the record of a rank that listens on some addresses.
func on(rank int, addrs ...string) record {
	r := record{Rank: rank, Size: 9, TCP: addrs[0]}
	for i, a := range addrs[1:] {
		r.TCP = strings.Repeat("eth0 ", 1-min(i, 1)) + r.TCP + fmt.Sprintf(",eth%d %s", i+1, a)
	}
	return r
}

func TestPairs(t *testing.T) {
	a, b, c, d, v6, w6 := "10.0.0.1:1", "10.0.1.1:1", "10.0.0.2:1", "10.0.1.2:1", "[fd00::1]:1", "[fd00::2]:1"
	for _, p := range []struct {
		from, to record
		want     [][2]string
	}{
		{on(1, a), on(0, c), [][2]string{{"", c}}},
		{on(1, a), on(0, w6), [][2]string{{"", w6}}}, // as the system sees fit
		{on(1, a, b), on(0, c, d), [][2]string{{a, c}, {b, d}}},
		{on(1, a), on(0, c, d), [][2]string{{a, c}, {a, d}}},
		{on(1, a, b, a), on(0, c, d), [][2]string{{a, c}, {b, d}, {a, c}}},
		{on(1, v6, a), on(0, c, d, w6), [][2]string{{a, c}, {a, d}, {v6, w6}}},
	} {
		got, err := pairs(p.from, p.to)
		require.NoError(t, err)
		var text [][2]string
		for _, g := range got {
			text = append(text, [2]string{g.dialer.TCP, g.listener.TCP})
		}
		require.Equal(t, p.want, text)
	}
	for _, p := range [][2]record{{on(7, a, v6), on(3, c, d)}, {on(7, a, b), on(3, c, w6)}, {on(7, a, b), on(3, w6)}} {
		_, err := pairs(p[0], p[1])
		require.ErrorContains(t, err, "rank 7 listens on [eth0 10.0.0.1:1 eth1 ")
		require.ErrorContains(t, err, ", rank 3 on [")
		require.ErrorContains(t, err, "set FSDP_LISTEN to interfaces of the same address families, IPv4 or IPv6, on both ranks")
	}
}

// TestRecordOfOne has ranks on one interface write what they always have.
func TestRecordOfOne(t *testing.T) {
	require.Regexp(t, `^127\.0\.0\.1:\d+$`, newJob(t, 1, nil).open(t)[0].self.TCP)
	var visited map[string]any
	require.NoError(t, json.Unmarshal(encode(visit{Channel: 7}), &visited))
	require.Len(t, visited, 6)
	for _, bad := range []string{`{"Lane":-1}`, `{"Lane":1}`, `{"Lanes":33}`, `{"Lane":2,"Lanes":2}`} {
		_, err := decode[visit]([]byte(bad))
		require.ErrorContains(t, err, "malformed")
	}
}
