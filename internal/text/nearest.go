package text

// Nearest returns the name that a misspelled word most likely means: at most one edit away for
// words of three to five letters, and at most two for longer words. It returns "" if there is no
// such name.
func Nearest(word string, names []string) (nearest string) {
	fewest := 1
	if len(word) > 2 {
		fewest = 2
	}
	if len(word) > 5 {
		fewest = 3
	}
	for _, name := range names {
		if n := edits(word, name); n < fewest {
			nearest, fewest = name, n
		}
	}
	return nearest
}

// edits returns the number of letters to insert, delete, change, or swap with the next to turn a
// into b (Damerau 1964, where no letter is edited twice).
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
