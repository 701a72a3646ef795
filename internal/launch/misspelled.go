package launch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/text"
)

// variables are the variables of this library that a user sets.
var variables = []string{
	AllowOlder, Hashes, JoinRunning, Joins, Members, Replace, Stragglers, Trace, Witness,
	"FSDP_CHECKSUMS", "FSDP_COLUMNS", "FSDP_CUBLASLT_LIBRARY", "FSDP_CUDA_LIBRARY", "FSDP_JOB", "FSDP_JOIN_TIMEOUT",
	"FSDP_LISTEN", "FSDP_NCCL_LIBRARY", "FSDP_RENDEZVOUS", "FSDP_SECRET", "FSDP_SECRET_FILE", "FSDP_SERVICE",
	"FSDP_TIMEOUT", "FSDP_TLS", "FSDP_TRANSPORT", "FSDP_TRUST_NETWORK",
}

// Misspelled returns the names in environ, of "NAME=value", that are not variables of this library
// but nearly one: FSDP_TRANSPROT. Other names with the prefix belong to other programs. Each comes
// with the variable that is most likely meant.
func Misspelled(environ []string) (names []string) {
	const prefix = "FSDP_"
	known := make([]string, len(variables)) // without the prefix
	for i, v := range variables {
		known[i] = strings.TrimPrefix(v, prefix)
	}
	for _, line := range environ {
		name, _, _ := strings.Cut(line, "=")
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours || slices.Contains(known, rest) {
			continue
		}
		if meant := text.Nearest(rest, known); meant != "" {
			names = append(names, fmt.Sprintf("%s is not used: did you mean %s%s?", name, prefix, meant))
		}
	}
	return names
}
