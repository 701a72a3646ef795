// Package text bounds text: bytes that travel to other processes, and lines that people read.
package text

import (
	"strings"
	"unicode/utf8"
)

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

// Fill breaks a line at spaces where it has more than so many columns. What follows a break begins
// with indent. A word that is longer than that is not broken.
func Fill(line string, columns int, indent string) string {
	width, end := 0, 0 // end is the last space that may be broken at
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

// Wider returns the lines of s that take more than so many columns of a terminal, where a tab leads
// to the next multiple of 8.
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
