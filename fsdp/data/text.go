package data

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/phase"
)

// OpenLines opens a text file whose samples are its lines, including empty ones. Lines end in "\n"
// or "\r\n", which is not part of the sample, and may have any length. The text is UTF-8, with or
// without a byte order mark.
func OpenLines(path string) (*File[string], error) {
	in, starts, err := openText(path, false)
	if err != nil {
		return nil, err
	}
	return newFile("lines", []*input{in}, len(starts)-1, func(i int, _ string) (string, error) {
		b, err := in.readPart(starts, i)
		return string(bytes.TrimSuffix(bytes.TrimSuffix(b, []byte{'\n'}), []byte{'\r'})), err
	}), nil
}

// openText opens a file and returns the offsets of its lines, without blank ones if skipBlank is
// set, and then the size of the file.
func openText(path string, skipBlank bool) (*input, []int64, error) {
	in, err := openInput(path)
	if err != nil {
		return nil, nil, err
	}
	starts, err := in.lines(skipBlank)
	if err == nil && len(starts) == 1 {
		err = in.errorf("nothing but space")
	}
	if err != nil {
		return nil, nil, errors.Join(err, in.file.Close())
	}
	return in, starts, nil
}

func (in *input) lines(skipBlank bool) (starts []int64, err error) {
	at, err := in.textStart()
	if err != nil {
		return nil, err
	}
	start, counts := at, !skipBlank // start of the current line; whether it counts
	err = in.chunks(at, in.size, func(b []byte) {
		for len(b) > 0 {
			part, rest, ended := bytes.Cut(b, []byte{'\n'})
			counts = counts || len(bytes.TrimLeft(part, " \t\r")) > 0
			at += int64(len(b) - len(rest))
			b = rest
			if ended {
				if counts {
					starts = append(starts, start)
				}
				start, counts = at, !skipBlank
			}
		}
	})
	if counts && start < in.size {
		starts = append(starts, start)
	}
	return append(starts, in.size), err
}

// readPart reads the bytes from start i to the next start.
func (in *input) readPart(starts []int64, i int) ([]byte, error) {
	b := make([]byte, starts[i+1]-starts[i])
	return b, in.read(b, starts[i])
}

// OpenDir finds the files below a directory whose names match a pattern of [path.Match], such as
// "*.go", or all files if there is no pattern. A sample is the text of a file, in the order of
// [filepath.WalkDir]. Files and directories whose names begin with a dot, empty files, and files
// below links to directories are left out. Files are read when they are needed, and Close does
// nothing.
func OpenDir(dir string, patterns ...string) (*File[string], error) {
	progress := phase.Begin("data: finding the files below "+dir, 0)
	defer progress.End()
	paths, err := find(dir, patterns, progress)
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s has no text files: empty files and names that begin with a dot do not count: check the path", dir)
		if len(patterns) > 0 {
			err = fmt.Errorf("%s has no text file whose name matches one of %q: check the path, and give patterns such as *.txt", dir, patterns)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return newFile("files", []*input{{path: dir}}, len(paths), func(i int, _ string) (string, error) {
		b, err := os.ReadFile(paths[i])
		if err != nil {
			return "", fmt.Errorf("data: %w", err)
		}
		return string(bytes.TrimPrefix(b, bom)), nil
	}), nil
}

// find returns the paths of files for [OpenDir], and counts them.
func find(dir string, patterns []string, progress *phase.Phase) (paths []string, err error) {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return nil, fmt.Errorf("%w %q", err, p)
		}
	}
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 { // WalkDir does not follow links
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return nil, err
		}
	}
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		matches := func(p string) bool { ok, _ := path.Match(p, name); return ok } // checked above
		switch {
		case file != dir && strings.HasPrefix(name, "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir() || len(patterns) > 0 && !slices.ContainsFunc(patterns, matches):
			return nil
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			if slices.Contains(compressed, strings.ToLower(filepath.Ext(name))) {
				return fmt.Errorf("%s is compressed, not text", file)
			}
			paths = append(paths, file)
			progress.Add(1)
		}
		return err
	})
	return paths, err
}
