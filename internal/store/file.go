package store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// Layout of a file (big endian):
//
//	| magic 8 | CRC-32C of the rest 4 | key length 2 | value length 4 | HMAC-SHA256 of job, key and value 32 | key | value |
//
// The checksum distinguishes an incomplete file from a wrong one. The HMAC distinguishes our files
// from unrelated ones. The name also depends on job and key: jobs that share a directory do not see
// each other.
const (
	fileMagic  = "FSDPKV 1"
	fileHeader = len(fileMagic) + 4 + 2 + 4 + sha256.Size
	maxFile    = int64(fileHeader + MaxKey + MaxValue)
	suffix     = ".kv"
)

var (
	errTorn    = errors.New("is incomplete")
	errOther   = errors.New("belongs to another key")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// nameLetters are characters that every file system accepts and distinguishes.
const nameLetters = "abcdefghijklmnopqrstuvwxyz0123456789-"

// seal names and encodes the files of a job, and proves that they belong to it.
type seal struct {
	key []byte
	job string
}

// fileName returns the name of the file of key: enough of the key for people to recognize it, and
// enough of a hash that no two keys, of this job or another, share a file.
func (s seal) fileName(key string) string {
	readable := strings.Map(func(r rune) rune {
		if strings.ContainsRune(nameLetters, r) {
			return r
		}
		return '_'
	}, key[:min(len(key), 64)])
	hash := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(s.job), s.job, key))
	return readable + "." + hex.EncodeToString(hash[:16]) + suffix
}

// prove returns the HMAC of a file.
func (s seal) prove(key string, value []byte) []byte {
	h := hmac.New(sha256.New, s.key)
	for _, b := range [][]byte{[]byte(s.job), []byte(key), value} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	return h.Sum(nil)
}

// encode returns the file of a key.
func (s seal) encode(key string, value []byte) []byte {
	b := make([]byte, len(fileMagic)+4, fileHeader+len(key)+len(value))
	copy(b, fileMagic)
	b = binary.BigEndian.AppendUint16(b, uint16(len(key)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	b = append(b, s.prove(key, value)...)
	b = append(append(b, key...), value...)
	binary.BigEndian.PutUint32(b[len(fileMagic):], crc32.Checksum(b[len(fileMagic)+4:], castagnoli))
	return b
}

// decode returns the value in the file of a key. The error is errTorn, errOther, or an error of the
// proof.
func (s seal) decode(key string, b []byte) ([]byte, error) {
	if len(b) < fileHeader || string(b[:len(fileMagic)]) != fileMagic {
		return nil, errTorn
	}
	rest := b[len(fileMagic)+4:]
	keyLen, valueLen := int(binary.BigEndian.Uint16(rest)), int64(binary.BigEndian.Uint32(rest[2:]))
	if keyLen > MaxKey || valueLen > MaxValue || int64(len(b)) != int64(fileHeader+keyLen)+valueLen ||
		crc32.Checksum(rest, castagnoli) != binary.BigEndian.Uint32(b[len(fileMagic):]) {
		return nil, errTorn
	}
	if key != string(b[fileHeader:fileHeader+keyLen]) {
		return nil, errOther
	}
	value := b[fileHeader+keyLen:]
	if proof := rest[6 : 6+sha256.Size]; !hmac.Equal(proof, s.prove(key, value)) {
		return nil, fmt.Errorf("was not written by a rank of this job: %w", auth.ErrSecret)
	}
	return value, nil
}
