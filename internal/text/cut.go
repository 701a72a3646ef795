// Package text bounds text that travels to other processes.
package text

import "unicode/utf8"

// Cut returns s if it has at most n bytes, else the longest beginning of s that has,
// without a part of a rune at its end: UTF-8 that is cut is still UTF-8.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	end := n
	for end > 0 && end > n-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
