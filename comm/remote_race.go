//go:build race

package comm

const raceDetector = true
