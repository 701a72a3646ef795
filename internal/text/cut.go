// Package text limits the length of text: bytes that are sent to other processes, and lines for
// people.
package text

import (
	"strings"
	"unicode/utf8"
)

// Cut returns s if it has at most n bytes, else its longest beginning of at most n bytes that ends
// with a whole rune: valid UTF-8 stays valid.
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

// Fill breaks a line at spaces if it is longer than columns. Lines after a break begin with indent.
// A word that is longer is not broken.
func Fill(line string, columns int, indent string) string {
	width, end := 0, 0 // end is the last space at which the line may be broken
	for i, r := range line {
		if r == ' ' && width <= columns {
			end = i
		}
		width++
	}
	if width <= columns || strings.TrimSpace(line[:end]) == "" {
		return line
	}
	return strings.TrimRight(line[:end], " ") + "\n" + Fill(indent+strings.TrimLeft(line[end:], " "), columns, indent)
}

// Wider returns the lines of s that take more than the given number of columns of a terminal, where
// a tab advances to the next multiple of 8.
func Wider(s string, columns int) (lines []string) {
	for line := range strings.Lines(s) {
		at := 0
		for _, r := range strings.TrimSuffix(line, "\n") {
			at++
			if r == '\t' {
				at = (at + 7) / 8 * 8
			}
		}
		if at > columns {
			lines = append(lines, line)
		}
	}
	return lines
}
