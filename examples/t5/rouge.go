package main

// rougeL returns ROUGE-L of a text (Lin, 2004, https://aclanthology.org/W04-1013): the harmonic
// mean of two shares: the longest common subsequence in the words of the text, and in the words of
// the reference. It is in [0, 1]. Case and punctuation do not count, and names are words each.
func rougeL(text, reference string) float64 {
	a, b := split(text), split(reference)
	if len(a)+len(b) == 0 {
		return 0
	}
	return 2 * float64(common(a, b)) / float64(len(a)+len(b))
}

// common returns the length of the longest common subsequence of a and b.
func common(a, b []string) int {
	best := make([]int, len(b)+1) // best[j] is the length for the words of a so far and b[:j]
	for _, w := range a {
		diagonal := 0
		for j, v := range b {
			above := best[j+1]
			if w == v {
				best[j+1] = diagonal + 1
			} else {
				best[j+1] = max(above, best[j])
			}
			diagonal = above
		}
	}
	return best[len(b)]
}
