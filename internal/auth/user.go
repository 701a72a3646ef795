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

// UserKey returns the secret of jobs that have none of their own: 32 random bytes which the
// processes of one user on this host share, and the name of the file that holds them. Whoever asks
// first makes it. The file lies in a directory that nobody but this user can look into; one that
// others own or can enter is an error.
func UserKey() (key []byte, file string, err error) {
	dir := filepath.Join(temporary(), fmt.Sprintf("gofsdp-%d", os.Geteuid()))
	if key, err = userKey(dir); err != nil {
		return nil, "", fmt.Errorf("auth: key of this user: %w", err)
	}
	return key, filepath.Join(dir, "key"), nil
}

// userKey is UserKey in dir.
func userKey(dir string) ([]byte, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir) // what is looked at is what is read, whatever the name leads to next
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return nil, err
	}
	if err := private(info, os.Geteuid()); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	key, err := root.ReadFile("key")
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKey(root); err == nil || errors.Is(err, fs.ErrExist) {
			key, err = root.ReadFile("key")
		}
	}
	if err == nil && len(key) != userKeySize {
		err = fmt.Errorf("%s has %d bytes, not %d", filepath.Join(dir, "key"), len(key), userKeySize)
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
