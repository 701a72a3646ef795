package monitor

import (
	"fmt"
	"strconv"
	"time"
)

// Count writes n with a space between groups of three digits: 1 234 567.
func Count(n int) string {
	s := strconv.Itoa(n)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// Bytes writes a number of bytes with three significant digits in decimal units: 12.3 MB.
func Bytes(n int) string {
	v, unit := short(float64(n))
	return v + " " + unit + "B"
}

// Rate writes a number per second, with a unit: 12.3k tok/s.
func Rate(perSecond float64, unit string) string {
	v, prefix := short(perSecond)
	return v + prefix + " " + unit + "/s"
}

// short returns v with three significant digits, and the prefix of the power of a thousand that it
// was divided by.
func short(v float64) (number, prefix string) {
	prefixes := []string{"", "k", "M", "G", "T", "P", "E"}
	i := 0
	for ; v >= 999.5 && i < len(prefixes)-1; i++ {
		v /= 1000
	}
	digits := 2
	switch {
	case i == 0 && v == float64(int(v)):
		digits = 0
	case v >= 99.95:
		digits = 0
	case v >= 9.995:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64), prefixes[i]
}

// Duration writes d to the second: 4s, 2m31s, 1h02m.
func Duration(d time.Duration) string {
	d = d.Round(time.Second)
	s := int(d.Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	default:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	}
}
