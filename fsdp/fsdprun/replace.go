package main

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// patienceForReplaced is how long ranks wait for a process that takes the place of a lost one,
// unless the user sets it.
const patienceForReplaced = "1m"

// replaced starts a process in the place of a rank that has failed, and reports whether it has.
// Another rank must have joined the group, so that the process can join it there. The ranks of
// other hosts have, if this one has.
func (l *launcher) replaced(a *attempt, r *rank) bool {
	joined := func(o *rank) bool { return o.end == nil && o.join == launch.Joined }
	if a.spares == 0 || r.join != launch.Joined && !r.late || l.nodes == 1 && !slices.ContainsFunc(a.ranks, joined) {
		return false
	}
	a.spares--
	l.screen.say("rank %d: %s; starting it again, the others go on", r.number, r.end)
	if err := l.run(a, r.number-a.First, r); err != nil {
		l.screen.say("cannot start rank %d: %v", r.number, err)
		return false
	}
	r.end.Replaced = true
	return true
}

// replaceEnviron returns the variables with which a rank and the process in its place find each
// other.
func (l *launcher) replaceEnviron(a *attempt, late bool) ([]string, error) {
	switch {
	case l.replace == 0:
		return nil, nil
	case a.dir == "":
		return nil, errors.New("-replace needs a temporary directory")
	}
	dir := filepath.Join(a.dir, "meet")
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
