package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/text"
)

// patienceForReplaced is how long ranks wait for a process that takes the place of a lost one,
// unless the user sets it.
const patienceForReplaced = "1m"

// replaced starts a process in the place of a rank that has failed, and reports whether it has.
// Another rank must have joined the group, so that the process can join it there. The ranks of
// other hosts have, if this one has.
func (l *launcher) replaced(a *attempt, r *rank) bool {
	if a.spares == 0 || r.join != launch.Joined && !r.late || l.nodes == 1 && !a.joined() {
		return false
	}
	a.spares--
	l.screen.say("rank %d: %s; starting it again, the others go on", r.number, r.end)
	if err := l.run(a, r.number-a.First, true); err != nil {
		l.screen.say("cannot start rank %d: %v", r.number, err)
		return false
	}
	r.end.Replaced = true
	return true
}

// joined reports whether a rank of this host runs that has joined the group.
func (a *attempt) joined() bool {
	return slices.ContainsFunc(a.ranks, func(r *rank) bool { return r.end == nil && r.join == launch.Joined })
}

// grown starts the processes that this host may have in addition, with the numbers of its ranks
// that have ended and the numbers after its last rank. They join when the ranks that run call
// comm.Reconnect. It reports false if no rank of this host has joined: then the meeting decides.
func (l *launcher) grown(a *attempt) bool {
	l.lookAt(a)
	if l.replace == 0 || a.asked || !a.joined() {
		return false
	}
	a.Size += l.max - a.Ranks
	a.Ranks = l.max
	var more []int
	for i := range l.max {
		number := a.First + i
		if slices.ContainsFunc(a.ranks, func(r *rank) bool { return r.end == nil && r.number == number }) {
			continue
		}
		if err := l.run(a, i, true); err != nil {
			l.screen.say("cannot start rank %d: %v", number, err)
			break
		}
		more = append(more, number)
	}
	if len(more) == 0 {
		l.screen.say("asked to grow, but %d ranks are already running", a.running)
	} else {
		l.screen.say("asked to grow: starting %s, to join when the others call comm.Reconnect", text.Numbered("rank", more))
	}
	return true
}

var errNoDirectory = errors.New("-replace needs a temporary directory")

// replaceEnviron returns the variables with which a rank and the process in its place find each
// other.
func (l *launcher) replaceEnviron(a *attempt, late bool) ([]string, error) {
	switch {
	case l.replace == 0:
		return nil, nil
	case a.dir == "":
		return nil, errNoDirectory
	}
	dir := a.membersDir()
	env := []string{launch.JoinRunning + "=" + fmt.Sprint(late)}
	if l.nodes > 1 {
		env = append(env, launch.Members+"="+dir)
	} else {
		meet := url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}
		env = append(env, "FSDP_RENDEZVOUS="+meet.String())
	}
	if lookup(l.base, launch.Replace) == "" {
		env = append(env, launch.Replace+"="+patienceForReplaced)
	}
	return env, nil
}

// membersDir is the directory in which the ranks of this host record the ranks of their group.
func (a *attempt) membersDir() string { return filepath.Join(a.dir, "meet") }

// setMembers sets the directory of the start that runs, or "".
func (l *launcher) setMembers(dir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members = dir
}

// readMembers returns the files that the ranks of this host have recorded, for a host whose ranks
// join them.
func (l *launcher) readMembers() (map[string][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.members == "" {
		return nil, errors.New("the ranks of host 0 have ended")
	}
	files := make(map[string][]byte)
	list, err := filepath.Glob(filepath.Join(l.members, "[^.]*"))
	for _, path := range list {
		var b []byte
		if b, err = os.ReadFile(path); err != nil {
			break
		}
		files[filepath.Base(path)] = b
	}
	return files, err
}

// placeMembers writes the files that another host has read.
func (l *launcher) placeMembers(a *attempt) error {
	switch {
	case !a.Late:
		return nil
	case a.dir == "":
		return errNoDirectory
	}
	err := os.MkdirAll(a.membersDir(), 0o700)
	for name, b := range a.Members {
		if filepath.Base(name) != name {
			return fmt.Errorf("host 0 has sent the file name %q", name)
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(a.membersDir(), name), b, 0o600))
	}
	return err
}
