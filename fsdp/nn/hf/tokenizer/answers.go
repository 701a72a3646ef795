package tokenizer

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/nn/hf/tokenizer/internal/jinja"
)

// A span is a part of a text or of its tokens.
type span struct{ start, end int }

// EncodeChat returns the tokens of a conversation by the chat template, and which of them belong to
// answers: to messages of the assistant, up to and including the token that ends the answer. A
// training that counts only these targets learns to answer and to stop. Transformers'
// apply_chat_template returns the same tokens. No other special tokens are put around them.
//
// If the template marks answers by {% generation %}, the marks decide, as in transformers.
// Otherwise an answer begins where the prompt for generation ends. A conversation without an answer
// is an error, and so is an answer that the template leaves out.
func (t *Tokenizer) EncodeChat(c Chat) (ids []int, answer []bool, err error) {
	ids, answer, err = t.encodeChat(&c)
	if err != nil {
		return nil, nil, fmt.Errorf("tokenizer: %w", err)
	}
	return ids, answer, nil
}

func (t *Tokenizer) encodeChat(c *Chat) (ids []int, answer []bool, err error) {
	text, err := t.chat.render(c, c.Messages, false)
	if err != nil {
		return nil, nil, err
	}
	text, spans, err := cutMarks(text)
	if err != nil {
		return nil, nil, err
	}
	if len(spans) == 0 {
		if spans, err = t.answers(c, text); err != nil {
			return nil, nil, err
		}
	}
	if len(spans) == 0 {
		return nil, nil, fmt.Errorf("the conversation of %s has no answer: want a message of the assistant", roles(c.Messages))
	}
	parts := t.parts(text)
	for _, p := range parts {
		ids = append(ids, p.ids...)
	}
	answer = make([]bool, len(ids))
	for _, s := range spans {
		for i := t.tokenAt(parts, s.start, false); i < t.tokenAt(parts, s.end, true); i++ {
			answer[i] = true
		}
	}
	return ids, answer, nil
}

// A textPart is an added token in a text, or the text between two of them. Its tokens do not depend
// on the rest of the text.
type textPart struct {
	text  string
	token *added
	first bool
	ids   []int
}

func (t *Tokenizer) parts(text string) (list []textPart) {
	cut(text, t.raw, func(part string, token *added) {
		p := textPart{text: part, token: token, first: len(list) == 0}
		p.ids = t.appendPart(nil, part, token, p.first)
		list = append(list, p)
	})
	return list
}

// tokenAt returns the number of tokens before a place in a text. A token around the place counts if
// the place is the end of a span, so the token is a part of any span that has a part of its text.
func (t *Tokenizer) tokenAt(parts []textPart, at int, end bool) int {
	n := 0
	for _, p := range parts {
		switch {
		case at <= 0:
			return n
		case at >= len(p.text):
			n += len(p.ids)
		default:
			var before []int
			if p.token == nil {
				before = t.appendPart(nil, p.text[:at], nil, p.first)
			}
			same := 0
			for same < len(before) && same < len(p.ids) && before[same] == p.ids[same] {
				same++
			}
			if end && (same < len(before) || p.token != nil) {
				same++
			}
			return n + min(same, len(p.ids))
		}
		at -= len(p.text)
	}
	return n
}

// cutMarks returns a text without marks, and the spans between them.
func cutMarks(text string) (string, []span, error) {
	var b strings.Builder
	var spans []span
	for {
		before, rest, ok := strings.Cut(text, jinja.MarkStart)
		b.WriteString(before)
		if !ok {
			break
		}
		inside, rest, ok := strings.Cut(rest, jinja.MarkEnd)
		if !ok || strings.Contains(inside, jinja.MarkStart) {
			return "", nil, errors.New("a generation block of the chat template has no end, or is within another one")
		}
		start := b.Len()
		b.WriteString(inside)
		spans = append(spans, span{start, b.Len()})
		text = rest
	}
	return b.String(), spans, nil
}

// answers returns the spans of answers in the text of a conversation whose template does not mark
// them. The text is compared with the texts of other conversations: those that end before or after
// the answer, and those with another content of the answer.
func (t *Tokenizer) answers(c *Chat, text string) ([]span, error) {
	var spans []span
	for i := range c.Messages {
		if c.Messages[i].Role != "assistant" {
			continue
		}
		s, err := t.answer(c, text, i)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		if n := len(spans); n > 0 && s.start < spans[n-1].end || s.start > s.end {
			return nil, fmt.Errorf("message %d: cannot find the answer in the text of the chat template: mark answers by {%% generation %%} in the template", i)
		}
		spans = append(spans, s)
	}
	return spans, nil
}

// answer returns the span of the answer that is message i.
func (t *Tokenizer) answer(c *Chat, text string, i int) (s span, err error) {
	m := &c.Messages[i]
	changed := append([]Message(nil), c.Messages...)
	changed[i].Content = other(m.Content)
	texts := make([]string, 5)
	for k, r := range []struct {
		messages []Message
		prompt   bool
	}{
		{changed, false}, {c.Messages[:i+1], false}, {changed[:i+1], false}, {c.Messages[:i], true}, {c.Messages[:i], false},
	} {
		if len(r.messages) == 0 {
			continue // before the first message there is no prompt
		}
		if texts[k], err = t.chat.render(c, r.messages, r.prompt); err != nil {
			return s, err
		}
	}
	different, upTo, differentUpTo, prompt, before := texts[0], texts[1], texts[2], texts[3], texts[4]
	shown := different != text
	switch {
	case shown:
		s.start = common(text, different)
		s.end = len(text) - commonEnd(text, different, s.start)
		// The end of the answer follows its content, here as in the conversation that ends there.
		ending := upTo[len(upTo)-commonEnd(upTo, differentUpTo, common(upTo, differentUpTo)):]
		s.end += t.end(text[s.end:][:common(text[s.end:], ending)], m.calls())
	case m.calls() && strings.HasPrefix(text, upTo) && strings.HasPrefix(upTo, before):
		s.start = len(before)
		s.end = s.start + t.end(upTo[s.start:], true)
	case m.Content == "" && m.object != nil:
		return s, errors.New("the content of the answer is no text: give one text, or mark answers by {% generation %} in the template")
	default:
		return s, errors.New("the chat template leaves out the answer")
	}
	switch {
	case prompt != before && strings.HasPrefix(text, prompt) && (len(prompt) <= s.start || !shown):
		s.start = len(prompt)
	case shown: // the template has no prompt for generation: a space is the answer's
		s.start = len(strings.TrimRight(text[:s.start], " "))
	}
	return s, nil
}

// end returns the length of the end of an answer, up to and including its first special token, or
// the last one.
func (t *Tokenizer) end(text string, last bool) int {
	n, at := 0, 0
	cut(text, t.raw, func(part string, token *added) {
		at += len(part)
		if token != nil && token.Special && (n == 0 || last) {
			n = at
		}
	})
	if n == 0 {
		t.endless.Do(func() {
			slog.Warn("tokenizer: the chat template ends answers with no special token, so a model does not learn where to stop: " +
				"add eos_token to the template, behind the content of the assistant")
		})
		return len(text)
	}
	return n
}

// other returns a content without a common beginning or end with content.
func other(content string) string {
	content = strings.TrimSpace(content)
	for _, c := range []string{"X", "Y", "Z"} {
		if !strings.HasPrefix(content, c) && !strings.HasSuffix(content, c) {
			return c
		}
	}
	return ""
}

// common returns the length of the common beginning of two texts.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// commonEnd returns the length of the common end of two texts after their common beginning.
func commonEnd(a, b string, after int) int {
	n := 0
	for n < min(len(a), len(b))-after && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}
