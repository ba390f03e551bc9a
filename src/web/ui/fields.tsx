/** The fields of one kind, to be edited. */
import type { JSX } from 'preact';
import type { ContentType } from '../../protocol/item.js';
import { Field } from './kit.js';
import { FIELDS, type Draft, type DraftErrors } from './drafts.js';
import { text } from './strings.js';

interface KindFieldsProps {
  readonly type: ContentType;
  readonly draft: Draft;
  readonly onDraft: (draft: Draft) => void;
  readonly errors: DraftErrors;
  readonly autoFocus?: boolean;
}

/** The fields of a kind, one by one. */
export function KindFields({ type, draft, onDraft, errors, autoFocus = false }: KindFieldsProps): JSX.Element {
  return (
    <div class={`kind-fields of-${type}`}>
      {FIELDS[type].map(({ name, kind, mono, number }, at) => (
        <Field
          key={name}
          label={text.fields.labels[name] ?? name}
          kind={kind}
          mono={mono}
          inputMode={number === true ? 'decimal' : undefined}
          value={draft[name] ?? ''}
          error={errors[name] ?? null}
          autoFocus={autoFocus && at === 0}
          autoComplete={kind === 'secret' ? 'new-password' : 'off'}
          onValue={(value) => onDraft({ ...draft, [name]: value })}
        />
      ))}
    </div>
  );
}
