package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
)

// Program is the name of the program that decodes a model. Its inputs are
//
//	tokens     ints [B, T]
//	positions  ints [B, T]    of the tokens in their rows
//	mask       ints [B, P+T]  not 0 where a key may be seen: keys of the cache, then new ones
//	rows       ints [B]       the rows of [B*T] whose logits are wanted
//	targets    ints [B]       all -1, which is no target: for heads that compute a loss too
//
// and, for each layer, the keys and the values of the cache, floats [B, P, Width]. A token sees the
// whole cache and the new tokens up to itself, within mask and window. The results are the logits
// [B, Vocab] and, for each layer, the keys and the values of the new tokens, [B, T, Width].
//
// A model with an encoder has more inputs at the end: a mask of the encoder's tokens, ints [B, S],
// and for each layer their keys and values, floats [B, S, Width].
const Program = "decode"

// EncodeProgram is the name of the program that runs an encoder. Its inputs are tokens, ints [B,
// S], and a mask, ints [B, S], which is 0 where there is no token. Its results are, for each layer
// of the decoder, the keys and the values of these tokens, [B, S, Width].
const EncodeProgram = "encode"

// A Size is the size of a model's cache.
type Size struct {
	Layers  int
	Width   int // elements of a token's keys in one layer, and of its values
	Context int // tokens of the longest row
	Vocab   int // number of tokens; 0 leaves it to the model to reject others
	// Window is the number of last keys that a token sees, including its own. 0 means all. With a
	// window the cache is filled from its end, so that the distance of two keys is the distance of
	// their tokens.
	Window int
	// Encoder says that [EncodeProgram] reads the prompts, and texts begin with Options.Start.
	Encoder bool
}

// Config configures how a Generator computes. It changes results only by rounding.
type Config struct {
	Batch int // largest number of rows in a pass: prompts, or their beams; 0 means 8
	Chunk int // largest number of a prompt's tokens in a pass; 0 means 256
	// Float64 must be set for a model that computes in float64.
	Float64 bool
}

// Options configure the generation.
type Options struct {
	MaxTokens int   // largest number of tokens for a prompt; fewer where the context ends, with a warning
	Start     []int // tokens before each text, if an encoder reads the prompts; not part of the text
	Stop      []int // tokens that end a text and are not part of it

	Temperature float64 // 0 chooses the likeliest token
	TopK        int     // number of likeliest tokens to draw from; 0 means all
	TopP        float64 // sum of the probabilities to draw from; 0 means 1
	Seed        uint64

	// Beams is the number of rows of beam search. More than 1 turns beam search on; Temperature
	// must be 0. Beam search returns the ended text with the largest sum of log-probabilities
	// divided by length^LengthPenalty, where the length includes the stop token. transformers
	// computes the same with its default early_stopping.
	Beams         int
	LengthPenalty float64 // 0 means 1
}

// A Token is a written token.
type Token struct {
	Prompt int // index of the prompt
	Token  int
}

// A Generator writes with a model, on one rank. It is not safe for concurrent use.
type Generator struct {
	m    *fsdp.Sharded
	size Size
	c    Config
}

// New returns a Generator for m, a model with [Program], whose cache has the given size, such as
// the result of nn.GPT's method Cache.
func New(m *fsdp.Sharded, size Size, c Config) (*Generator, error) {
	c.Batch, c.Chunk = cmp.Or(c.Batch, 8), cmp.Or(c.Chunk, 256)
	switch {
	case m == nil:
		return nil, errors.New("generate: the model is nil")
	case min(c.Batch, c.Chunk) < 1:
		return nil, fmt.Errorf("generate: %+v has negative sizes", c)
	case min(size.Layers, size.Width, size.Context) < 1 || size.Window < 0:
		return nil, fmt.Errorf("generate: a cache of %+v is empty", size)
	}
	return &Generator{m, size, c}, nil
}

// Generate writes after each prompt until a token of Options.Stop, Options.MaxTokens or the end of
// the model's context. It returns the texts by prompt. It is collective, see the package comment.
// An error of one rank is an error on all.
func (g *Generator) Generate(ctx context.Context, prompts [][]int, o Options) ([][]int, error) {
	texts := make([][]int, len(prompts))
	for t, err := range g.Stream(ctx, prompts, o) {
		if err != nil {
			return nil, err
		}
		texts[t.Prompt] = append(texts[t.Prompt], t.Token)
	}
	return texts, nil
}

// Stream yields each token as soon as it is written. Beam search yields all tokens of a prompt at
// once, when its search is done. Tokens of one prompt come in order, mixed with tokens of other
// prompts. A caller that leaves the loop waits until the other ranks are done. An error is yielded
// last.
func (g *Generator) Stream(ctx context.Context, prompts [][]int, o Options) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		stopped, written := false, make([]int, len(prompts))
		emit := func(t Token) bool {
			written[t.Prompt]++
			stopped = stopped || !yield(t, nil)
			return !stopped
		}
		err := g.m.JoinCalls(ctx, func() error {
			if err := g.check(prompts, o); err != nil {
				return err
			}
			if g.c.Float64 {
				return write[float64](ctx, g, prompts, o, emit)
			}
			return write[float32](ctx, g, prompts, o, emit)
		})
		if err != nil && !stopped {
			yield(Token{}, &callError{err})
		} else if !stopped {
			g.warnCut(prompts, o, written)
		}
	}
}

// warnCut warns of texts that reached the end of the context before a stop token and MaxTokens. It
// does not warn if MaxTokens is at least the context: such a caller has asked for as much as fits.
func (g *Generator) warnCut(prompts [][]int, o Options, written []int) {
	cut, longest := 0, 0
	for i, p := range prompts {
		n := len(p)
		if g.size.Encoder {
			n = len(o.Start)
		}
		if n+written[i] == g.size.Context && written[i] < o.MaxTokens && o.MaxTokens < g.size.Context {
			cut, longest = cut+1, max(longest, n)
		}
	}
	if cut > 0 {
		slog.Warn("generate: texts end at the model's context, before MaxTokens: use shorter prompts, or a model with a longer Context",
			"texts", cut, "of", len(prompts), "context", g.size.Context, "longest prompt", longest, "MaxTokens", o.MaxTokens)
	}
}

func (g *Generator) check(prompts [][]int, o Options) error {
	switch {
	case o.MaxTokens < 1:
		return fmt.Errorf("MaxTokens is %d, want 1 or more", o.MaxTokens)
	case !(o.Temperature >= 0):
		return fmt.Errorf("option Temperature is %v, want 0 or more", o.Temperature)
	case o.TopK < 0:
		return fmt.Errorf("TopK is %d, want 0 or more", o.TopK)
	case !(o.TopP >= 0 && o.TopP <= 1):
		return fmt.Errorf("TopP is %v, want 0 to 1", o.TopP)
	case o.Beams < 0:
		return fmt.Errorf("option Beams is %d, want 0 or more", o.Beams)
	case !(o.LengthPenalty >= 0):
		return fmt.Errorf("LengthPenalty is %v, want 0 or more", o.LengthPenalty)
	case o.Beams > 1 && o.Temperature > 0:
		return errors.New("beam search does not sample: Temperature must be 0")
	case o.Beams > g.c.Batch:
		return fmt.Errorf("%d beams do not fit into passes of %d rows, see Config.Batch", o.Beams, g.c.Batch)
	}
	if n := len(o.Start); g.size.Encoder != (n > 0) || n >= g.size.Context {
		return fmt.Errorf("option Start has %d tokens, want 1 to %d for a model with an encoder, and 0 for others", n, g.size.Context-1)
	}
	for i, p := range prompts {
		if len(p) == 0 || !g.size.Encoder && len(p) >= g.size.Context {
			return fmt.Errorf("prompt %d has %d tokens, want 1 to %d", i, len(p), g.size.Context-1)
		}
		if err := g.checkTokens(p); err != nil {
			return fmt.Errorf("prompt %d: %w", i, err)
		}
	}
	if err := g.checkTokens(o.Start); err != nil {
		return fmt.Errorf("option Start: %w", err)
	}
	return nil
}

func (g *Generator) checkTokens(tokens []int) error {
	for i, t := range tokens {
		if g.size.Vocab > 0 && (t < 0 || t >= g.size.Vocab) {
			return fmt.Errorf("token %d is %d, want 0 to %d", i, t, g.size.Vocab-1)
		}
	}
	return nil
}

// A callError is the error of a model call that this package has made.
type callError struct{ error }

// Error leaves out the names of the calls, which follow the ranks at the beginnings of lines.
func (e *callError) Error() string {
	text := strings.TrimPrefix(e.error.Error(), "fsdp: ")
	for calls.MatchString(text) {
		text = calls.ReplaceAllString(text, "$1")
	}
	return "generate: " + text
}

// Unwrap returns the error of the call.
func (e *callError) Unwrap() error { return e.error }

var calls = regexp.MustCompile(`(?m)^((?:fsdp: )?(?:rank \d+: )*)(?:JoinCalls|Eval): `)

// write writes after all prompts, a few at a time, the longest first.
func write[T float](ctx context.Context, g *Generator, prompts [][]int, o Options, emit func(Token) bool) error {
	order := make([]int, len(prompts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(prompts[b]), len(prompts[a])) })
	most := g.c.Batch / max(1, o.Beams)
	for some := range slices.Chunk(order, most) {
		b := newBatch[T](g, len(some))
		for i, p := range some {
			begin := prompts[p]
			if g.size.Encoder {
				begin = o.Start
			}
			b.rows[i] = row{prompt: p, source: i, tokens: slices.Clone(begin), end: len(begin) + min(o.MaxTokens, g.size.Context-len(begin))}
		}
		var err error
		if g.size.Encoder {
			err = b.source.read(ctx, g, prompts, some)
		}
		switch {
		case err != nil || g.size.Encoder && !b.source.hasResult():
		case o.Beams > 1:
			err = search(ctx, b, o, emit)
		default:
			err = sample(ctx, b, o, emit)
		}
		if err != nil || b.stopped {
			return err
		}
	}
	return nil
}
