package text

import (
	"strconv"
	"strings"
)

// Numbered formats one or several numbers: "rank 3", "ranks 0-2,5".
func Numbered(what string, numbers []int) string {
	if len(numbers) > 1 {
		what += "s"
	}
	return what + " " + spans(numbers)
}

// spans formats ascending numbers as 0-2,5.
func spans(numbers []int) string {
	var list []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		span := strconv.Itoa(numbers[i])
		if j > i {
			span += "-" + strconv.Itoa(numbers[j])
		}
		list = append(list, span)
		i = j + 1
	}
	return strings.Join(list, ",")
}
