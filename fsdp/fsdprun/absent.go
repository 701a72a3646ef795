package main

import (
	"strings"

	"github.com/gofsdp/gofsdp/internal/text"
)

// giveUp records why a host does not take part. It may come back.
func (m *meeting) giveUp(host int, why string) {
	if m.gaveUp == nil {
		m.gaveUp = make(map[int]string)
	}
	m.gaveUp[host] = why
	m.say(why)
}

// silence returns possible reasons for the absence of a host that has given none, or "" if there is
// no such host.
func (m *meeting) silence() string {
	for host := range m.hosts {
		if m.members[host] == nil && m.gaveUp[host] == "" {
			return "; a silent host has not started fsdprun, cannot reach -rdzv, or has a different secret or none " +
				"(give the same -secret-file or FSDP_SECRET everywhere): see the output of its fsdprun"
		}
	}
	return ""
}

// absent lists the absent hosts, and the reasons that they have given.
func (m *meeting) absent() string {
	var absent []int
	var why strings.Builder
	for host := range m.hosts {
		if m.members[host] == nil {
			absent = append(absent, host)
			if m.gaveUp[host] != "" {
				why.WriteString("; " + m.gaveUp[host])
			}
		}
	}
	return text.Numbered("host", absent) + why.String()
}
