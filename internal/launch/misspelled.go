package launch

import (
	"fmt"
	"slices"
	"strings"
)

// variables are those of this library that a user sets.
var variables = []string{
	AllowOlder, Hashes, Stragglers, Trace,
	"FSDP_CHECKSUMS", "FSDP_COLUMNS", "FSDP_CUBLASLT_LIBRARY", "FSDP_CUDA_LIBRARY", "FSDP_JOB", "FSDP_JOIN_TIMEOUT",
	"FSDP_LISTEN", "FSDP_NCCL_LIBRARY", "FSDP_RENDEZVOUS", "FSDP_SECRET", "FSDP_SECRET_FILE", "FSDP_SERVICE",
	"FSDP_TIMEOUT", "FSDP_TLS", "FSDP_TRANSPORT", "FSDP_TRUST_NETWORK",
}

// Misspelled returns the names in environ, of "NAME=value", that are no variables of this library
// but nearly one: FSDP_TRANSPROT. Others of that prefix belong to other programs. Each comes with
// the one that is most likely meant.
func Misspelled(environ []string) (names []string) {
	for _, line := range environ {
		name, _, _ := strings.Cut(line, "=")
		rest, ours := strings.CutPrefix(name, "FSDP_")
		if !ours || slices.Contains(variables, name) {
			continue
		}
		meant, fewest := "", 2 // edits, of which a short word may have one
		if len(rest) > 5 {
			fewest = 3
		}
		for _, v := range variables {
			if n := edits(name, v); n < fewest {
				meant, fewest = v, n
			}
		}
		if meant != "" {
			names = append(names, fmt.Sprintf("%s is not read: is %s meant?", name, meant))
		}
	}
	return names
}

// edits returns how many letters have to be put in, left out, changed, or exchanged with the next
// one to turn a into b (Damerau 1964, where no letter is edited twice).
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
