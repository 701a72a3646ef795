//go:build !amd64 || purego

package checksum

func update(sum uint32, p []byte) uint32 { return updateGo(sum, p) }
