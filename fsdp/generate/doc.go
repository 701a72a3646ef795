// Package generate makes sharded language models write: token after token, with a cache of keys and
// values, so that a step computes one token and does not repeat the tokens before it.
//
//	g, err := generate.New(m, gpt, generate.Config{})
//	texts, err := g.Generate(ctx, prompts, generate.Options{MaxTokens: 100, Temperature: 0.8, TopP: 0.95})
//
// # Passes
//
// A pass runs the model's program "decode" (see [Program]) with [fsdp.Sharded.EvalProgram], on some
// tokens of each row and on the row's cache. The prompt takes a pass for every Config.Chunk tokens.
// Each written token takes one pass.
//
//	tokens   [B, T]     new in this pass; a row that has fewer is filled up
//	cache    [B, P, W]  keys, and values, of each layer: of the tokens before
//	logits   [B, V]     of what comes after each row's last token
//
// An encoder reads the prompt in one pass before the first, with the program "encode". Then texts
// begin with Options.Start.
//
// B, T and P are powers of two, so a few programs serve all lengths. After each has been compiled
// once, nothing more is compiled. Finished rows leave the batch as soon as half of the rows are
// finished.
//
// # Ranks
//
// Generate and Stream are collective. Every rank has its own prompts, any number of them or none. A
// rank without work takes part in the passes of the others, see [fsdp.Sharded.JoinCalls].
//
// # Choice
//
// At temperature 0 the likeliest token is chosen, the first of equal ones. Otherwise a token is
// drawn with probability softmax(logits/temperature), from the TopK likeliest and from the fewest
// whose probabilities sum to TopP (Holtzman et al., 2020, arXiv:1904.09751). The random numbers are
// a function of the seed, the prompt's index and the token's index, so they do not depend on the
// rest of the batch. Beam search keeps the Beams likeliest continuations and returns the best by
// log-probability over length^LengthPenalty (Wu et al., 2016, arXiv:1609.08144, without the
// constant five).
package generate
