/** The list with its filters, the composer, and the open item. */
import { useSignal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { CONTENT_TYPES, type ContentType } from '../../protocol/item.js';
import { binName, move, toMove } from './actions.js';
import { Composer } from './composer.js';
import { Check, Inbox, MenuIcon, Search, X } from 'lucide-preact';
import { KIND_ICONS } from './kinds.js';
import { BinSign, Button, Dialog, EmptyState } from './kit.js';
import { later } from './later.js';
import { bins, isRevoked } from './link.js';
import { List } from './list.js';
import { Notices } from './notices.js';
import { binId, itemId } from './route.js';
import { drawer, filters, focusList, focusSearch, query, searching } from './state.js';
import { Status } from './status.js';
import { text } from './strings.js';
import { Uploads } from './uploads.js';

const words = text.list;

/** Time without a key press after which the search begins. */
const SEARCH_REST_MS = 80;

/** Not part of the first view; loaded right after it. */
const ItemView = later(async () => (await import('./item.js')).ItemView);

/** The main screen. */
export function Browse() {
  useEffect(ItemView.ahead, []);
  // After another screen or a closed item the list takes the focus; a page just loaded focuses nothing.
  useLayoutEffect(() => {
    const lost = document.activeElement === document.body && navigator.userActivation.hasBeenActive;
    if (itemId.value === null && lost) focusList.current();
  }, [itemId.value]);
  const name = binId.value === null ? text.frame.all : binName(binId.value);
  // A revoked device has no connection and takes no new items.
  return (
    <div class="browse">
      <section class="pane-list" aria-label={name}>
        <header class="list-head">
          <span class="drawer-button">
            <Button kind="icon" icon={MenuIcon} label={text.frame.menu} onClick={() => (drawer.value = true)} />
          </span>
          <h1 class="clip">
            <bdi>{name}</bdi>
          </h1>
          {!searching.value && (
            <span class="search-button">
              <Button kind="icon" icon={Search} label={words.search} onClick={() => focusSearch.current()} />
            </span>
          )}
        </header>
        {!isRevoked.value && <Status short />}
        {!isRevoked.value && <Composer />}
        <SearchField name={name} />
        <Chips />
        <Uploads />
        <Notices />
        <List />
      </section>
      <section class="pane-item" aria-label={text.item.label}>
        {itemId.value === null ? (
          <EmptyState icon={Inbox} title={text.item.choose}>
            <p>{text.item.chooseHow}</p>
          </EmptyState>
        ) : (
          <ItemView key={itemId.value} id={itemId.value} />
        )}
      </section>
      {toMove.value !== null && <MoveDialog />}
    </div>
  );
}

function SearchField({ name }: { name: string }) {
  const field = useRef<HTMLInputElement>(null);
  const typed = useSignal(query.value);
  focusSearch.current = () => {
    searching.value = true;
    requestAnimationFrame(() => field.current?.focus());
  };
  // Another component may clear the query.
  useEffect(() => void (typed.value = query.value), [query.value]);
  useEffect(() => {
    const rest = setTimeout(() => (query.value = typed.value), SEARCH_REST_MS);
    return () => clearTimeout(rest);
  }, [typed.value]);
  const end = (): void => {
    typed.value = '';
    query.value = '';
    searching.value = false;
  };
  return (
    <div class={`search${searching.value ? ' shown' : ''}`} role="search">
      <Search />
      <input
        ref={field}
        type="search"
        dir={typed.value === '' ? undefined : 'auto'}
        autocomplete="off"
        enterkeyhint="search"
        aria-label={words.searchIn(name)}
        placeholder={words.searchIn(name)}
        value={typed.value}
        onInput={(event) => (typed.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Escape') {
            event.preventDefault();
            event.stopPropagation();
            end();
            focusList.current();
          } else if (event.key === 'ArrowDown' || event.key === 'Enter') {
            event.preventDefault();
            query.value = typed.value;
            focusList.current();
          }
        }}
      />
      {(typed.value !== '' || searching.value) && <Button kind="icon" icon={X} label={words.clear} onClick={end} />}
    </div>
  );
}

/** Filters by kind; several may be active. */
function Chips() {
  const toggle = (type: ContentType): void => {
    filters.value = filters.value.includes(type)
      ? filters.value.filter((one) => one !== type)
      : [...filters.value, type];
  };
  return (
    <div class="chips list-chips" role="group" aria-label={words.kinds}>
      <button type="button" class="chip" aria-pressed={filters.value.length === 0} onClick={() => (filters.value = [])}>
        {words.allKinds}
      </button>
      {CONTENT_TYPES.map((type) => {
        const Sign = KIND_ICONS[type];
        return (
          <button
            key={type}
            type="button"
            class="chip"
            aria-pressed={filters.value.includes(type)}
            onClick={() => toggle(type)}
          >
            <Sign />
            {words.kindsOf[type]}
          </button>
        );
      })}
    </div>
  );
}

/** Chooses another bin for an item. */
function MoveDialog() {
  const item = toMove.value;
  const close = (): void => void (toMove.value = null);
  if (item === null) return null;
  return (
    <Dialog title={words.moveTitle} onClose={close}>
      <ul class="bin-choice">
        {(bins.value ?? []).map((bin) => (
          <li key={bin.id}>
            <button
              type="button"
              class="nav-link"
              aria-current={bin.id === item.binId ? 'true' : undefined}
              onClick={() => {
                close();
                void move(item, bin.id);
              }}
            >
              <BinSign emoji={bin.emoji} />
              <bdi class="grow clip">{binName(bin.id)}</bdi>
              {bin.id === item.binId && <Check />}
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
