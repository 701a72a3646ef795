package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gofsdp/gofsdp/internal/calibrate"
)

// rounds is how often each model is trained. More rounds reduce the influence of other processes.
const rounds = 3

// measure calibrates this machine and writes a cluster.
func (o *flags) measure(out io.Writer) error {
	if o.model != "" || o.hf != "" {
		return usageError{errors.New("-calibrate measures this machine: it cannot be combined with -model or -hf")}
	}
	if err := among("-transport", o.transport, calibrate.Transports); err != nil {
		return err
	}
	ranks := []int{runtime.NumCPU()}
	var err error
	if o.ranks != "" {
		if ranks, err = numbers(o.ranks); err != nil {
			return err
		}
	}
	if len(ranks) != 1 {
		return usageError{fmt.Errorf("-calibrate needs a single number of ranks, but -ranks %s has %d", o.ranks, len(ranks))}
	}
	memory := calibrate.Memory(ranks[0])
	if o.memory != "" {
		if memory, err = bytesOf(o.memory); err != nil {
			return err
		}
	}
	if memory == 0 {
		return usageError{errors.New("this system does not report its memory: give -memory")}
	}
	c := calibrate.New(ranks[0], o.transport)
	for range rounds {
		if err := c.Round(context.Background()); err != nil {
			return err
		}
	}
	name := strings.TrimSuffix(filepath.Base(o.calibrate), ".json")
	cluster := c.Cluster(name, memory)
	if err := os.WriteFile(o.calibrate, cluster.JSON(), 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %s, %d rates; large products of float32 reach %.0f %% of a core's %.0f GFLOP/s\n", o.calibrate, cluster.Device.Name,
		len(cluster.Rates), 100*cluster.Software.Product, cluster.Device.PeakWide/1e9)
	return err
}
