package kit

import (
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
)

func init() {
	Transports["shared memory"] = func(c *comm.Config) { c.Transport = comm.SharedMemory }
	// Two hosts: four ranks form two groups inside hosts, and sums go from there to the other host.
	Transports["hosts"] = func(c *comm.Config) { c.Host = fmt.Sprint("host", 2*c.Rank/c.Size) }
}
