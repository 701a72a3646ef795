package auth

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const userKeySize = 32

// UserDir returns the directory for [UserKey]: the same for all processes of a user on a host.
func UserDir() string {
	return filepath.Join(temporary(), fmt.Sprintf("gofsdp-%d", os.Geteuid()))
}

// UserKey returns the secret of jobs without a secret: 32 random bytes that the processes of one
// user on this host share, and the name of the file in dir that holds them. The first process that
// asks makes it, and dir if need be. It returns an error if other users own dir or can enter it, or
// if dir is a link.
func UserKey(dir string) (key []byte, file string, err error) {
	if key, err = userKey(dir); err != nil {
		return nil, "", fmt.Errorf("auth: key of this user: %s: %w", dir, err)
	}
	return key, filepath.Join(dir, "key"), nil
}

// userKey is UserKey without the names.
func userKey(dir string) ([]byte, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir) // so that the checked directory is the one that is read, later too
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := private(dir, root, os.Geteuid()); err != nil {
		return nil, err
	}
	key, err := root.ReadFile("key")
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKey(root); err == nil || errors.Is(err, fs.ErrExist) {
			key, err = root.ReadFile("key")
		}
	}
	if err == nil && len(key) != userKeySize {
		err = fmt.Errorf("the file key has %d bytes, want %d: remove the file while no job is starting", len(key), userKeySize)
	}
	return key, err
}

// makeKey puts a new key in place, whole, unless another process has done so.
func makeKey(root *os.Root) error {
	key := make([]byte, userKeySize)
	rand.Read(key) // never fails
	draft := "key-" + rand.Text()
	err := root.WriteFile(draft, key, 0o600)
	if err == nil {
		err = root.Link(draft, "key")
	}
	return errors.Join(err, root.Remove(draft))
}
