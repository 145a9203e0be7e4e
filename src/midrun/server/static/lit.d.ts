// Types of the parts of Lit 3.3 that lit.js exports.

export interface TemplateResult {
  readonly strings: TemplateStringsArray;
  readonly values: readonly unknown[];
}
export interface CSSResult {
  readonly cssText: string;
  readonly styleSheet?: CSSStyleSheet;
}
export interface PropertyDeclaration {
  type?: typeof String | typeof Boolean | typeof Number;
  attribute?: boolean | string;
  reflect?: boolean;
  state?: boolean;
  noAccessor?: boolean;
  hasChanged?(value: unknown, old: unknown): boolean;
}
export type Changed = Map<PropertyKey, unknown>;

export class LitElement extends HTMLElement {
  static properties: Record<string, PropertyDeclaration>;
  static styles: CSSResult | readonly CSSResult[];
  static shadowRootOptions: ShadowRootInit;
  readonly updateComplete: Promise<boolean>;
  readonly hasUpdated: boolean;
  readonly renderRoot: ShadowRoot;
  connectedCallback(): void;
  disconnectedCallback(): void;
  requestUpdate(name?: PropertyKey, old?: unknown): void;
  protected shouldUpdate(changed: Changed): boolean;
  protected willUpdate(changed: Changed): void;
  protected update(changed: Changed): void;
  protected firstUpdated(changed: Changed): void;
  protected updated(changed: Changed): void;
  protected render(): unknown;
}

export const nothing: unique symbol;
export function html(strings: TemplateStringsArray, ...values: unknown[]): TemplateResult;
export function svg(strings: TemplateStringsArray, ...values: unknown[]): TemplateResult;
export function css(strings: TemplateStringsArray, ...values: (CSSResult | number)[]): CSSResult;
export function classMap(classes: Record<string, boolean | undefined>): unknown;
export function live(value: unknown): unknown;
export function repeat<T>(
  items: Iterable<T>,
  key: (item: T, index: number) => unknown,
  template: (item: T, index: number) => unknown,
): unknown;
