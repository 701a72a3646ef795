package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// maxNodes bounds a node list, which a few characters can make very long.
const maxNodes = 1 << 16

// NodeList expands a list of hosts in Slurm's notation
// (https://slurm.schedmd.com/scontrol.html#OPT_hostnames), in order:
//
//	gpu[08-10,12],login1   gpu08 gpu09 gpu10 gpu12 login1
//	rack[1-2]n[0-1]        rack1n0 rack1n1 rack2n0 rack2n1
//
// A number has as many digits as the one that begins its range. The empty list
// has no hosts.
func NodeList(list string) ([]string, error) {
	var hosts []string
	for rest := list; rest != ""; {
		item, next, err := cutItem(rest)
		if err == nil && next == "" && strings.HasSuffix(rest, ",") {
			err = fmt.Errorf("ends with a comma")
		}
		var names []string
		if err == nil {
			names, err = expand(item, maxNodes-len(hosts))
		}
		if err != nil {
			return nil, fmt.Errorf("node list %q: %w", clip(list), err)
		}
		hosts, rest = append(hosts, names...), next
	}
	return hosts, nil
}

// cutItem splits off the text before the first comma outside of brackets.
func cutItem(list string) (item, rest string, err error) {
	open := false
	for i, c := range list {
		switch {
		case c == '[' && open, c == ']' && !open:
			return "", "", fmt.Errorf("brackets do not match")
		case c == '[':
			open = true
		case c == ']':
			open = false
		case c == ',' && !open:
			return list[:i], list[i+1:], nil
		case c <= ' ':
			return "", "", fmt.Errorf("a host name contains a blank")
		}
	}
	if open {
		return "", "", fmt.Errorf("brackets do not match")
	}
	return list, "", nil
}

// expand returns the names of an item, at most limit. Its brackets match.
func expand(item string, limit int) ([]string, error) {
	if item == "" {
		return nil, fmt.Errorf("a host name is empty")
	}
	names := []string{""}
	for item != "" {
		literal, rest, bracket := strings.Cut(item, "[")
		numbers := []string{""}
		if bracket {
			inside, after, _ := strings.Cut(rest, "]")
			var err error
			if numbers, err = expandRanges(inside, limit); err != nil {
				return nil, err
			}
			rest = after
		}
		if len(names)*len(numbers) > limit {
			return nil, errTooMany
		}
		product := make([]string, 0, len(names)*len(numbers))
		for _, name := range names {
			for _, number := range numbers {
				product = append(product, name+literal+number)
			}
		}
		names, item = product, rest
	}
	return names, nil
}

var errTooMany = fmt.Errorf("more than %d hosts", maxNodes)

// expandRanges returns the numbers of "08-10,12".
func expandRanges(ranges string, limit int) ([]string, error) {
	var numbers []string
	for r := range strings.SplitSeq(ranges, ",") {
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		lo, errLo := strconv.ParseUint(first, 10, 32)
		hi, errHi := strconv.ParseUint(last, 10, 32)
		if errLo != nil || errHi != nil || lo > hi {
			return nil, fmt.Errorf("%q is not a range of numbers", r)
		}
		if hi-lo >= uint64(limit-len(numbers)) {
			return nil, errTooMany
		}
		for n := lo; n <= hi; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return numbers, nil
}

// taskCounts expands the numbers of tasks on each node, "2(x3),1" for 2,2,2,1.
func taskCounts(list string) ([]int, error) {
	var counts []int
	for rest := list; rest != ""; {
		var item string
		item, rest, _ = strings.Cut(rest, ",")
		count, times, repeated := strings.Cut(item, "(x")
		n, err := strconv.ParseUint(count, 10, 31)
		k := uint64(1)
		if repeated && err == nil {
			digits, closed := strings.CutSuffix(times, ")")
			k, err = strconv.ParseUint(digits, 10, 31)
			if !closed {
				err = strconv.ErrSyntax
			}
		}
		if err != nil || k > uint64(maxNodes-len(counts)) {
			return nil, fmt.Errorf("tasks per node %q are not numbers such as 2(x3),1", clip(list))
		}
		for range k {
			counts = append(counts, int(n))
		}
	}
	return counts, nil
}

// clip shortens text for an error.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
