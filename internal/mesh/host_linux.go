package mesh

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
)

// hostIdentity returns the common properties of processes that can open each other's abstract
// sockets: the boot, the network namespace and the user. If /proc does not have them, it is the
// name of the host.
func hostIdentity(name string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return name
	}
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return name
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", strings.TrimSpace(string(boot)), space, os.Getuid()))
	return fmt.Sprintf("%x", sum[:16])
}
