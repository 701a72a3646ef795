package plan_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/plan"
)

// host is a host of two cores, on which a byte of "work" takes a second on one rank and two on two.
func host() *plan.Cluster {
	c := simple()
	c.PerHost, c.Cores = 4, 2
	c.Rates = []plan.Rate{{Op: "work", Ranks: 2, Byte: 2}, {Op: "work", Ranks: 1, Byte: 1}}
	return c
}

// working is a chain of calls of "work", on so many ranks.
func working(n, gather, seconds, ranks int) *plan.Pass {
	p := chain(n, gather, seconds)
	p.Ranks, p.Units[0].Forward[0].Op = ranks, "work"
	return p
}

// TestRatesOfAHost compares times on the cores of a host with what they are by hand.
func TestRatesOfAHost(t *testing.T) {
	for _, c := range []struct {
		name           string
		ranks, gather  int
		change         func(c *plan.Cluster)
		total, compute float64
	}{
		{"one rank", 1, 0, nil, 15, 15},
		{"two ranks on two cores", 2, 0, nil, 30, 30},
		{"between what was measured", 2, 0, func(c *plan.Cluster) { c.Cores, c.Rates[0].Ranks = 3, 3 }, 22.5, 22.5},
		{"beyond it", 4, 0, func(c *plan.Cluster) { c.Cores = 4 }, 30, 30},
		{"an operation that was not measured", 1, 0, func(c *plan.Cluster) { c.Rates[0].Op, c.Rates[1].Op = "a", "b" }, 15, 15},
		{"four ranks on two cores", 4, 0, func(c *plan.Cluster) { c.Rates = c.Rates[1:] }, 30, 15},
		{"a link that nothing hides but the first gather", 2, 3, nil, 33, 30},
		{"ranks compute while others wait", 4, 3, func(c *plan.Cluster) { c.Rates = c.Rates[1:] }, 33, 15},
		{"but no longer than they have to", 4, 20, func(c *plan.Cluster) { c.Rates = c.Rates[1:] }, 70, 15},
		{"who waits goes on late", 2, 3, func(c *plan.Cluster) { c.Inside.Late = 0.5 }, 33.5, 30},
		{"all agree before a pass, and twice in an update", 2, 0, func(c *plan.Cluster) { c.Inside.Latency = 1 }, 34, 30},
		{"a rank moves the bytes", 2, 3, func(c *plan.Cluster) {
			c.Inside.Bandwidth = 1e9
			c.Rates = append(c.Rates, plan.Rate{Op: "wait", Wide: true, Ranks: 2, Byte: 1}, plan.Rate{Op: "wait" + plan.AtOnce, Wide: true, Ranks: 2, Byte: 1, FLOP: 0.5})
		}, 42, 30},
		{"two threads", 1, 0, func(c *plan.Cluster) {
			c.Rates = append(c.Rates, plan.Rate{Op: "work", Ranks: 1, Threads: 2, Byte: 0.6})
		}, 9, 9},
		{"between measured threads", 1, 0, func(c *plan.Cluster) { // a fifth of the time is the same for all
			c.Cores, c.Rates = 4, append(c.Rates, plan.Rate{Op: "work", Ranks: 1, Threads: 4, Byte: 0.4})
		}, 9, 9},
		{"ranks of two threads gain what one does", 2, 0, func(c *plan.Cluster) {
			c.Cores, c.Rates = 4, append(c.Rates, plan.Rate{Op: "work", Ranks: 1, Threads: 2, Byte: 0.6})
		}, 18, 18},
		{"threads beyond the cores", 1, 0, func(c *plan.Cluster) {
			c.Cores, c.Rates = 1, append(c.Rates, plan.Rate{Op: "work", Ranks: 1, Threads: 2, Byte: 0.6})
		}, 15, 15},
		{"half of a step stays in the cache", 2, 0, func(c *plan.Cluster) {
			c.Device.Cache = &plan.Cache{Bytes: 40, Cores: 2}
			c.Rates = append(c.Rates, plan.Rate{Op: "work", Ranks: 2, Byte: 1, Cached: true})
		}, 22.5, 22.5},
		{"all of it does where each has a cache", 2, 0, func(c *plan.Cluster) {
			c.Device.Cache = &plan.Cache{Bytes: 40, Cores: 1}
			c.Rates = append(c.Rates, plan.Rate{Op: "work", Ranks: 2, Byte: 1, Cached: true})
		}, 15, 15},
		{"calls, passes and updates", 1, 0, func(c *plan.Cluster) {
			c.Rates = append(c.Rates, plan.Rate{Op: "forward", Wide: true, Ranks: 1, Fixed: 1}, plan.Rate{Op: "pass", Wide: true, Ranks: 1, Fixed: 10},
				plan.Rate{Op: "update", Wide: true, Ranks: 1, Fixed: 0.5})
		}, 28.5, 18},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := host()
			if c.change != nil {
				c.change(cluster)
			}
			p := working(3, c.gather, 5, c.ranks)
			p.Ops[0].Live.Work = 40
			p.Threads = 1
			if strings.Contains(c.name, "threads") {
				p.Threads = 2
			}
			got := p.Time(cluster, 1)
			require.InDelta(t, c.total, got.Total, 1e-6)
			require.InDelta(t, c.compute, got.Compute, 1e-6)
		})
	}
}

// TestRateOfMergedOperations: an operation that does more than another has the rate of the other,
// unless it has its own.
func TestRateOfMergedOperations(t *testing.T) {
	for op, total := range map[string]float64{"add work": 30, "early work with bias": 30, "own work": 15, "add other": 15} {
		p := working(3, 0, 5, 2)
		p.Units[0].Forward[0].Op = op
		require.InDelta(t, total, p.Time(host(), 1).Total, 1e-6, op)
	}
}

// TestWorkOfGroups counts what ranks do for the collectives of a group that is cut over four ranks,
// and of one that two of four have pieces of, and of one that each has.
func TestWorkOfGroups(t *testing.T) {
	for _, c := range []struct {
		shards, replicas       int
		gathered, reduced, own int
	}{{4, 1, 300, 600, 200}, {2, 2, 200, 800, 400}, {1, 4, 0, 1200, 800}, {1, 1, 0, 0, 800}} {
		g := plan.Group{Shards: c.shards, Replicas: c.replicas, Params: 400, Grads: 800, Stored: 400 / c.shards}
		require.Equal(t, plan.Work{Bytes: c.gathered, FLOPs: 400, Wide: true}, g.Work(plan.Wait))
		require.Equal(t, plan.Work{Bytes: c.reduced, FLOPs: c.own, Wide: true}, g.Work(plan.Drain))
	}
	g := plan.Group{Shards: 4, Replicas: 1, Params: 200, Grads: 400, Stored: 100}
	require.False(t, g.Work(plan.Gather).Wide, "masters of twice the size")
}

// TestFileOfRates writes clusters and reads them, and refuses rates that make no sense.
func TestFileOfRates(t *testing.T) {
	for _, c := range append([]*plan.Cluster{host()}, plan.Clusters()["h100"], plan.Clusters()["epyc-2"]) {
		read, err := plan.Parse(c.JSON())
		require.NoError(t, err)
		require.Equal(t, c, read)
	}
	for want, r := range map[string]plan.Rate{
		`the rate of "" is for 1 ranks`:                  {Ranks: 1},
		`the rate of "add" is for 0 ranks`:               {Op: "add"},
		`for 1 ranks of -1 threads`:                      {Op: "add", Ranks: 1, Threads: -1},
		`for 2 threads on 2 ranks`:                       {Op: "add", Ranks: 2, Threads: 2},
		`the rate of "add" on 1 ranks has the number -1`: {Op: "add", Ranks: 1, Byte: -1},
	} {
		c := host()
		c.Rates = append(c.Rates, r)
		_, err := plan.Parse(c.JSON())
		require.ErrorContains(t, err, want)
	}
	c := host()
	c.Device.Cache = new(plan.Cache)
	_, err := plan.Parse(c.JSON())
	require.ErrorContains(t, err, "Device.Cache has 0 bytes for 0 cores")
	c.Device.Cache = &plan.Cache{Bytes: 1, Cores: 1}
	c.Rates[0].Cached, c.Rates[1].Threads = true, 2
	read, err := plan.Parse(c.JSON())
	require.NoError(t, err)
	require.Equal(t, c, read)
	c.Cores = -1
	_, err = plan.Parse(c.JSON())
	require.ErrorContains(t, err, "Cores is -1")
}

// TestSlopes: a device whose products have no slopes reads and writes the product again, unless the
// rate is of both.
func TestSlopes(t *testing.T) {
	for _, v := range []struct {
		slopes bool
		rates  []plan.Rate
		more   float64
	}{
		{true, nil, 0},
		{false, nil, 4}, // the product is read and written in 2 bytes
		{false, []plan.Rate{{Op: "gelu tanh grad", Ranks: 1, Byte: 2}}, 10},
		{false, []plan.Rate{{Op: "gelu linear dx", Ranks: 1, Byte: 1}}, 0},
	} {
		p, c := chain(1, 0, 5), simple()
		w := &p.Units[0].Forward[0]
		w.Op, w.Rows, w.Cols = "gelu linear dx", 1, 1
		c.Device.Slopes = true
		want := p.Time(c, 1).Compute + v.more
		c.Device.Slopes, c.Rates = v.slopes, v.rates
		require.Equal(t, want, p.Time(c, 1).Compute, "%+v", v)
	}
}
