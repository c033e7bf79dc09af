// AssemblyScript: accounts in a map by name, classes with virtual methods, strings, a sort by call-back, garbage collected
// while it runs. Holds: managed objects in linear memory, the collector's lists and state in globals. Every transfer must
// leave the sum of all accounts as it was; else it traps. run(transfers) = a digest.

let dice: u32 = 2463534242;

function nextRandom(below: u32): u32 {
  dice ^= dice << 13;
  dice ^= dice >> 17;
  dice ^= dice << 5;
  return dice % below;
}

abstract class Account {
  constructor(readonly name: string, public cents: i64) {}
  abstract fee(cents: i64): i64;
}

class Checking extends Account {
  fee(cents: i64): i64 { return cents > 10000 ? 50 : 5; }
}

class Savings extends Account {
  withdrawals: i32 = 0;
  fee(cents: i64): i64 { return ++this.withdrawals > 3 ? cents / 100 : 0; }
}

class Bank {
  private accounts: Map<string, Account> = new Map();
  private history: string[] = [];
  private digest: u64 = 0xcbf29ce484222325;

  open(account: Account): void { this.accounts.set(account.name, account); }

  transfer(from: string, to: string, cents: i64): void {
    const source = this.accounts.get(from), target = this.accounts.get(to), fee = source.fee(cents);
    if (source === target || source.cents < cents + fee) return;
    source.cents -= cents + fee;
    target.cents += cents;
    this.accounts.get("fees").cents += fee;
    this.history.push(`${from} to ${to}: ${(cents as f64) / 100}`);
    if (this.history.length == 32) this.forget();
  }

  private forget(): void {
    for (let i = 0; i < this.history.length; i++) this.add(this.history[i]);
    this.history = [];
  }

  private add(text: string): void {
    for (let i = 0; i < text.length; i++) this.digest = (this.digest ^ text.charCodeAt(i)) * 0x100000001b3;
  }

  sum(): i64 {
    const all = this.accounts.values();
    return all.map<i64>((account) => account.cents).reduce((total, cents) => total + cents, 0 as i64);
  }

  close(): u64 {
    const all = this.accounts.values();
    all.sort((a, b) => a.cents < b.cents ? 1 : a.cents > b.cents ? -1 : a.name < b.name ? -1 : 1);
    this.forget();
    for (let i = 0; i < all.length; i++) this.add(all[i].name + "=" + all[i].cents.toString());
    return this.digest;
  }
}

export function run(transfers: i32): u64 {
  dice = 2463534242;
  const bank = new Bank(), names: string[] = ["fees"];
  bank.open(new Checking("fees", 0));
  for (let i = 0; i < 12; i++) {
    const name = (i % 3 == 0 ? "savings " : "checking ") + i.toString();
    names.push(name);
    bank.open(i % 3 == 0 ? new Savings(name, 1000000) : new Checking(name, 250000));
  }
  const before = bank.sum();
  for (let i = 0; i < transfers; i++) {
    bank.transfer(names[nextRandom(names.length)], names[nextRandom(names.length)], nextRandom(20000));
    if (i % 16 == 0) assert(bank.sum() == before, "money was lost");
  }
  assert(bank.sum() == before, "money was lost");
  return bank.close();
}
