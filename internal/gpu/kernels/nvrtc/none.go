//go:build !linux || !cgo

package main

func main() {} // without cgo no library can be loaded; builds with cgo compare the hashes
