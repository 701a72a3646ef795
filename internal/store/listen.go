package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// listening holds the functions with which a server begins to listen. Tests replace them.
type listening struct {
	open   func(ctx context.Context, network, addr string) (net.Listener, error)
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// listenOn returns the functions for the network of ctx.
func listenOn(ctx context.Context) listening {
	if n := NetworkOf(ctx); n != nil {
		return listening{open: func(ctx context.Context, _, addr string) (net.Listener, error) { return n.Listen(ctx, addr) }}
	}
	// On systems where the address of a dead server could not be reused, Go sets SO_REUSEADDR.
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	return listening{config.Listen, net.DefaultResolver.LookupNetIP}
}

// wait listens on addr. It waits for a name that does not exist yet, or has only addresses of other
// hosts: a name service may not have this host's new name yet.
func (l listening) wait(ctx context.Context, addr string, cfg Config) ([]net.Listener, error) {
	said := false
	for retry := (backoff{next: 20 * time.Millisecond, max: time.Second}); ; {
		list, err := l.all(ctx, addr)
		var early *nameError
		if !errors.As(err, &early) {
			return list, err
		}
		if !said {
			said = true
			cfg.log(fmt.Errorf("store: waiting for the name of this host: %w", err))
		}
		if ctx.Err() != nil || !retry.wait(ctx.Done(), nil) {
			return nil, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// nameError says that a name does not lead to this host, which may change.
type nameError struct{ error }

func (e *nameError) Unwrap() error { return e.error }

// all listens on every address of a host's name that belongs to this host: IPv4 and IPv6, say.
func (l listening) all(ctx context.Context, addr string) (list []net.Listener, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" || l.lookup == nil {
		ln, err := l.open(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return []net.Listener{ln}, nil
	}
	ips, err := l.lookup(ctx, "ip", host)
	if err != nil {
		return nil, &nameError{err}
	}
	defer func() {
		if err != nil {
			for _, ln := range list {
				err = errors.Join(err, ln.Close())
			}
			list = nil
		}
	}()
	var foreign error
	for _, ip := range ips {
		ln, err := l.open(ctx, "tcp", net.JoinHostPort(ip.Unmap().String(), port))
		switch {
		case err == nil:
			list = append(list, ln)
			if tcp, ok := ln.Addr().(*net.TCPAddr); ok && port == "0" { // the same for all
				port = strconv.Itoa(tcp.Port)
			}
		case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT):
			foreign = errors.Join(foreign, err)
		default:
			return list, err
		}
	}
	if list == nil {
		return nil, &nameError{fmt.Errorf("%s is not an address of this host: %w", host, foreign)}
	}
	return list, nil
}
