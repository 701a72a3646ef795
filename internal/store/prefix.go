package store

import (
	"context"
	"strings"
)

// Prefix returns the part of s whose keys begin with prefix, as a store whose keys do not. Closing
// it does nothing: s stays with whoever opened it. The limit on keys holds for prefix and key
// together, and errors name both.
func Prefix(s Store, prefix string) Store { return part{s, prefix} }

type part struct {
	whole  Store
	prefix string
}

func (p part) Set(ctx context.Context, key string, value []byte) error {
	return p.whole.Set(ctx, p.prefix+key, value)
}

func (p part) Get(ctx context.Context, key string) ([]byte, error) {
	return p.whole.Get(ctx, p.prefix+key)
}

func (p part) Claim(ctx context.Context, key string, value []byte) ([]byte, error) {
	return p.whole.Claim(ctx, p.prefix+key, value)
}

func (p part) Delete(ctx context.Context, key string) error {
	return p.whole.Delete(ctx, p.prefix+key)
}

func (p part) List(ctx context.Context, prefix string) (map[string][]byte, error) {
	all, err := p.whole.List(ctx, p.prefix+prefix)
	if err != nil {
		return nil, err
	}
	list := make(map[string][]byte, len(all))
	for key, value := range all {
		list[strings.TrimPrefix(key, p.prefix)] = value
	}
	return list, nil
}

func (p part) Close() error { return nil }
