//go:build !amd64 || purego

package checksum

func update(sum uint32, p []byte) uint32 { return updateGo(sum, p) }

func copyUpdate(sum uint32, dst, src []byte) uint32 { return copyUpdateGo(sum, dst, src) }
