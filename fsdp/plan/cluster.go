package plan

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// A Cluster describes the hosts, devices and links that a pass runs on. Its file is this struct in
// JSON, see [Parse].
type Cluster struct {
	Name     string
	Sources  []string // of the figures, one a line
	Device   Device
	PerHost  int  // devices that share a host
	Cores    int  `json:",omitempty"` // cores of a host whose ranks compute on them; 0 if each rank has a device
	Inside   Link // between the devices of a host
	Between  Link // between hosts; Bandwidth is the sum of a host's network cards
	Software Software
	Rates    []Rate `json:",omitempty"` // of operations that were measured one by one
}

// A Device computes.
type Device struct {
	Name            string
	Memory          int     // bytes
	Peak            float64 // FLOP/s of products of 16-bit numbers
	PeakWide        float64 // FLOP/s of products of float32
	Bandwidth       float64 // bytes/s of its memory, as its maker says
	Multiprocessors int     // number that share the tiles of a product; 1 for a processor core
	Slopes          bool    `json:",omitempty"` // its products multiply by the slope of GELU: compute capability 9.0
	Cache           *Cache  `json:",omitempty"` // the last level before memory, where Rates depend on it
}

// A Link carries collectives.
type Link struct {
	Bandwidth float64 // bytes/s that a rank of a ring sends while it receives as much
	Latency   float64 // seconds that any collective takes
	Hop       float64 // seconds for each further rank of the ring
	Late      float64 `json:",omitempty"` // seconds from the end of a collective until a waiting rank notices it
}

// Software is how well programs use the devices. Its fields are fitted to measurements.
type Software struct {
	Product   float64 // share of the peak that large products reach
	Depth     float64 // length of sums at which products reach half of that
	Attention float64 // share of the peak that attention reaches
	SmallHead float64 // share of Attention that is reached with heads of fewer than 128 elements
	Scores    float64 // bytes moved for each score and pair of products if attention keeps scores in memory, or 0
	Memory    float64 // share of the memory's bandwidth that is reached
	Traffic   float64 // bytes that are moved, as a multiple of what operations read and write at least
	Launch    float64 // seconds that a kernel takes at least
	Overlap   float64 // how much slower devices compute while a collective runs: 0.1 is a tenth
	Link      float64 // share of the bandwidth of links that is reached
	Step      float64 // seconds of a step that nothing else explains
}

//go:embed clusters/*.json
var files embed.FS

// Clusters returns the clusters that come with the package, by name: a100-40, a100-80, h100, h200
// and b200, each with eight devices a host and the network that such hosts usually have;
// h100-measured, an h100 on which our own kernels were measured one by one; and epyc-2, a virtual
// machine with two cores, as "fsdpplan -calibrate" measures them.
func Clusters() map[string]*Cluster {
	list := make(map[string]*Cluster)
	entries, _ := files.ReadDir("clusters") // which is there, or this would not compile
	for _, e := range entries {
		text, err := files.ReadFile("clusters/" + e.Name())
		var c *Cluster
		if err == nil {
			c, err = Parse(text)
		}
		if err != nil {
			panic(err) // TestClusters reads them all
		}
		list[c.Name] = c
	}
	return list
}

//go:embed published.txt
var published string

// Published returns a table, at most 80 columns wide, that compares predictions with published
// runs. The constants of the clusters were fitted to some of these runs. TestPublished compares the
// table with its own results.
func Published() string { return published }

// A multiprocessor computes a tile of a product, tileRows × tileCols, at a time.
const tileRows, tileCols = 128, 256

// manyWaves is the number of tiles per multiprocessor from which the last tiles no longer matter.
const manyWaves = 32

// Parse reads a cluster from JSON. Unknown fields are errors, and so is anything after the cluster.
// A missing field is 0, and every value must make sense: see [Cluster.Check].
func Parse(file []byte) (*Cluster, error) {
	c := new(Cluster)
	d := json.NewDecoder(bytes.NewReader(file))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, fmt.Errorf("plan: reading a cluster: %w", err)
	}
	if d.More() {
		return nil, errors.New("plan: reading a cluster: unexpected text after its end")
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	return c, nil
}

// Check returns an error if c is nil or if a field of it makes no sense: no step can be timed on
// such a cluster. [Parse] and [Search] check their clusters.
func (c *Cluster) Check() error {
	if c == nil {
		return errors.New("plan: the cluster is empty: use one of Clusters, or a result of Parse")
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("plan: cluster %q: %w", c.Name, err)
	}
	return nil
}

// check returns an error that names the first field of c that makes no sense.
func (c *Cluster) check() error {
	d, s := &c.Device, &c.Software
	for _, f := range []struct {
		name     string
		value    float64
		positive bool
	}{
		{"Device.Memory", float64(d.Memory), true}, {"Device.Peak", d.Peak, true}, {"Device.PeakWide", d.PeakWide, true},
		{"Device.Bandwidth", d.Bandwidth, true}, {"Device.Multiprocessors", float64(d.Multiprocessors), true},
		{"PerHost", float64(c.PerHost), true},
		{"Inside.Bandwidth", c.Inside.Bandwidth, true}, {"Inside.Latency", c.Inside.Latency, false}, {"Inside.Hop", c.Inside.Hop, false},
		{"Inside.Late", c.Inside.Late, false}, {"Between.Late", c.Between.Late, false},
		{"Between.Bandwidth", c.Between.Bandwidth, true}, {"Between.Latency", c.Between.Latency, false}, {"Between.Hop", c.Between.Hop, false},
		{"Software.Product", s.Product, true}, {"Software.Depth", s.Depth, false}, {"Software.Attention", s.Attention, true},
		{"Software.SmallHead", s.SmallHead, true}, {"Software.Scores", s.Scores, false}, {"Software.Memory", s.Memory, true}, {"Software.Traffic", s.Traffic, true},
		{"Software.Launch", s.Launch, false}, {"Software.Overlap", s.Overlap, false}, {"Software.Link", s.Link, true}, {"Software.Step", s.Step, false},
	} {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) || f.value < 0 || f.positive && f.value == 0 {
			return fmt.Errorf("%s is %v, which is out of range", f.name, f.value)
		}
	}
	if c.Cores < 0 {
		return fmt.Errorf("field Cores is %d: must not be negative", c.Cores)
	}
	if cache := d.Cache; cache != nil && (cache.Bytes < 1 || cache.Cores < 1) {
		return fmt.Errorf("Device.Cache has %d bytes for %d cores: both must be at least 1", cache.Bytes, cache.Cores)
	}
	for i := range c.Rates {
		if err := c.Rates[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// seconds returns how long work takes on one device.
func (c *Cluster) seconds(w Work) float64 {
	d, s := &c.Device, &c.Software
	moved := float64(w.Bytes) / (d.Bandwidth * s.Memory)
	peak := d.Peak
	if w.Wide {
		peak = d.PeakWide
	}
	var t float64
	switch w.Class {
	case Product:
		t = max(float64(w.FLOPs)/(peak*s.Product*c.filled(w)*float64(w.Depth)/(float64(w.Depth)+s.Depth)), moved)
	case Attention:
		t = max(c.attention(w, peak), moved)
	default:
		t = s.Traffic * moved
	}
	return float64(w.Count) * max(t, s.Launch)
}

// attention returns how long attention computes. Software that keeps scores in memory also computes
// the hidden ones, in products whose sums are as long as a head.
func (c *Cluster) attention(w Work, peak float64) float64 {
	s := &c.Software
	if s.Scores > 0 {
		depth, products := float64(w.Depth), float64(w.Products)
		computed := 2 * products * float64(w.Scores) * depth / (peak * s.Product * depth / (depth + s.Depth))
		return computed + products/2*float64(w.Scores)*s.Scores/(c.Device.Bandwidth*s.Memory)
	}
	rate := peak * s.Attention
	if w.Depth < 128 {
		rate *= s.SmallHead
	}
	return float64(w.FLOPs) / rate
}

// filled returns which share of the multiprocessors the tiles of a product keep busy.
func (c *Cluster) filled(w Work) float64 {
	if c.Device.Multiprocessors == 1 {
		return 1
	}
	tiles := math.Ceil(float64(w.Rows)/tileRows) * math.Ceil(float64(w.Cols)/tileCols)
	waves := tiles / float64(c.Device.Multiprocessors)
	if waves >= manyWaves {
		return 1
	}
	return waves / math.Ceil(waves)
}

// link returns the link that limits a collective over consecutive ranks.
func (c *Cluster) link(ranks int) *Link {
	if ranks > c.PerHost {
		return &c.Between
	}
	return &c.Inside
}

// gather returns how long it takes to all-gather, or to reduce-scatter, the given total of bytes
// over consecutive ranks.
func (c *Cluster) gather(bytes, ranks int) float64 {
	if ranks <= 1 {
		return 0
	}
	link, bandwidth := c.link(ranks), c.Inside.Bandwidth
	if ranks > c.PerHost {
		bandwidth = min(bandwidth, link.Bandwidth)
	}
	return link.Latency + float64(ranks-1)*link.Hop + float64(bytes)*float64(ranks-1)/float64(ranks)/(bandwidth*c.Software.Link)
}

// reduce returns how long it takes to sum pieces of bytes/shards over replicas. All ranks that have
// a piece do this at the same time, and the ranks of a host share its network cards.
func (c *Cluster) reduce(bytes, shards, replicas int) float64 {
	if replicas <= 1 {
		return 0
	}
	link, bandwidth := c.Inside, c.Inside.Bandwidth
	sharing := 1
	if shards*replicas > c.PerHost {
		link, bandwidth = c.Between, c.Between.Bandwidth
		sharing = min(shards, c.PerHost)
	}
	sent := 2 * float64(bytes) / float64(shards) * float64(replicas-1) / float64(replicas)
	return link.Latency + 2*float64(replicas-1)*link.Hop + sent*float64(sharing)/(min(bandwidth, c.Inside.Bandwidth*float64(sharing))*c.Software.Link)
}
