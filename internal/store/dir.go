package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// dir is a Store in a directory, with one file for each key. A file appears whole, by a link. If a
// file system still shows it in parts, its checksum detects that, and the file is read again. There
// are no notifications of changes, so a Get polls.
type dir struct {
	path string
	seal seal
	link func(old, new string) error // os.Link, or a file system without it
	once sync.Once
	done chan struct{} // closed by Close
}

// Dir returns a store in a directory that all ranks can reach, which is created if need be. It uses
// Job and Secret of cfg: a file from a process without the secret is an error, not a value.
//
// Stored values remain when all ranks have ended. Jobs may share a directory, but each attempt of a
// job needs a new name, so that it does not find the values of the last one.
func Dir(path string, cfg Config) (Store, error) {
	if err := auth.Check(cfg.Secret); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	key, err := auth.Key(cfg.Secret, "store file")
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return &dir{path: path, seal: seal{key: key, job: cfg.Job}, link: os.Link, done: make(chan struct{})}, nil
}

func (d *dir) Get(ctx context.Context, key string) (value []byte, err error) {
	if err = check(key, nil); err == nil {
		err = d.retry(ctx, absentOrTransient, func() error {
			value, err = d.read(key)
			if errors.Is(err, fs.ErrNotExist) {
				d.refresh()
			}
			return err
		})
	}
	if err != nil {
		return nil, d.explain("get", key, err)
	}
	return value, nil
}

func (d *dir) Claim(ctx context.Context, key string, value []byte) (holder []byte, err error) {
	if err = check(key, value); err == nil {
		// An NFS client may report that the file exists and yet not find it.
		err = d.retry(ctx, absentOrTransient, func() error {
			holder = value
			err := d.write(key, value)
			if errors.Is(err, fs.ErrExist) {
				holder, err = d.read(key)
			}
			return err
		})
	}
	if err != nil {
		return nil, d.explain("claim", key, err)
	}
	return append([]byte(nil), holder...), nil
}

// Close ends the calls that wait. The directory stays.
func (d *dir) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}

func (d *dir) explain(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("store in %s: %s %q: %w", d.path, op, key, err)
}

func (d *dir) file(name string) string { return filepath.Join(d.path, name) }

// retry calls f until it returns nil or an error for which passes is false.
func (d *dir) retry(ctx context.Context, passes func(error) bool, f func() error) error {
	pause := backoff{next: 10 * time.Millisecond, max: 500 * time.Millisecond}
	for {
		select {
		case <-d.done:
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		err := f()
		if err == nil || !passes(err) {
			return err
		}
		if pause.wait(ctx.Done(), d.done) {
			continue
		}
		if ctx.Err() == nil {
			return ErrClosed
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("no rank has set it: %w", context.Cause(ctx))
		}
		return fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
}

// transient reports whether err is a temporary error of a shared file system: a file was replaced
// while it was read, or is not complete yet.
func transient(err error) bool {
	return errors.Is(err, errTorn) || errors.Is(err, syscall.EINTR) || busy(err)
}

func absentOrTransient(err error) bool { return errors.Is(err, fs.ErrNotExist) || transient(err) }

// write makes a separate file and publishes it.
func (d *dir) write(key string, value []byte) error {
	tmp := d.file(".tmp-" + rand.Text())
	if err := create(tmp, d.seal.encode(key, value)); err != nil {
		return err
	}
	err := d.publish(tmp, d.file(d.seal.fileName(key)))
	if gone := os.Remove(tmp); err == nil && !errors.Is(gone, fs.ErrNotExist) {
		err = gone
	}
	return err
}

// publish gives the file old the name new, unless there is one. Without links it writes new in
// place, where readers may see it half written for a moment.
func (d *dir) publish(old, new string) error {
	err := d.link(old, new)
	if err == nil || errors.Is(err, fs.ErrExist) || transient(err) {
		return err
	}
	b, err := os.ReadFile(old)
	if err != nil {
		return err
	}
	return create(new, b)
}

// create writes a new file.
func create(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// read returns the value of key. Whatever an unrelated process puts there, read neither blocks (a
// FIFO) nor takes more memory than a value may.
func (d *dir) read(key string) ([]byte, error) {
	name := d.seal.fileName(key)
	f, err := os.OpenFile(d.file(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is not a file of this store", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	value, err := d.seal.decode(key, b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return value, nil
}

// refresh makes an NFS client forget that a file did not exist: opening a directory asks the server
// for changes.
func (d *dir) refresh() {
	if f, err := os.Open(d.path); err == nil {
		f.Close()
	}
}
