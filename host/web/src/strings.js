// Every word of the page, in the languages it speaks.

const EN = {
  sessions: "Sessions", new: "New session", search: "Search", send: "Send", stop: "Stop", queued: "queued", remove: "Remove",
  prompt: "Message", agent: "Agent", fullAccess: "Full access", model: "Model", mode: "Mode", you: "You", note: "Note",
  confirmFull: "Full access allows every tool what you may do yourself, without asking. Explicit denies stay. Go on?",
  yes: "Yes", no: "No", cancel: "Cancel", once: "Once", always: "Always", refuse: "Refuse", reason: "Why not (for the model)",
  stores: "Always", wants: "wants to", because: "because", changed: "This changed since you were asked.", answered: "Answered already",
  truncated: "truncated", viewFull: "View full output", more: "More", expired: "The stored output has expired.", running: "running",
  waiting: "waits for you", pending: "pending", ok: "done", error: "failed", denied: "refused", interrupted: "interrupted",
  reasoning: "Reasoning", compacted: "Compacted", before: "before", after: "after", kept: "Summary", undoCompaction: "Undo compaction",
  compact: "Compact now", older: "Older messages", hidden: "older outputs hidden from the model", offline: "The server is not there. What you type is kept.",
  noToken: "Open the link that `moryflow serve` printed. `moryflow serve --link` prints another.", question: "A question waits", go: "Go there",
  tree: "Tree", prompts: "Prompt", plugins: "Plugins", close: "Close", elsewhere: "runs in a terminal", edit: "Edit and branch", fork: "Fork",
  label: "Label", switchHere: "Go on from here", export: "Export", delete: "Delete", confirmDelete: "Delete this session and its outputs?",
  default: "Default", custom: "Custom", modelDefault: "use model default", save: "Save", who: "Who put each block there", tokens: "tokens",
  status: "Status", hooks: "Hooks", quarantine: "Quarantine", ledger: "What each plugin did", explain: "Explain a permission", ask: "Ask", stats: "Statistics",
  attach: "Attach", thinking: "thinks", turn: "turn", steps: "steps", child: "Sub-agent", title: "Title", save_: "Save", empty: "Nothing yet.",
  turnEnded: "The turn ended", memory: "Memory", write: "Write it", dont: "Leave it", menu: "Menu", retry: "waits to try again", reload: "reloaded",
};

const ZH = {
  sessions: "会话", new: "新会话", search: "搜索", send: "发送", stop: "停止", queued: "排队中", remove: "移除",
  prompt: "消息", agent: "代理", fullAccess: "完全访问", model: "模型", mode: "模式", you: "你", note: "备注",
  confirmFull: "完全访问允许所有工具执行你本人可执行的操作，且不再询问；明确的拒绝规则仍然有效。继续吗？",
  yes: "是", no: "否", cancel: "取消", once: "仅此一次", always: "总是", refuse: "拒绝", reason: "拒绝的原因（给模型看）",
  stores: "“总是”将保存", wants: "请求", because: "原因", changed: "询问之后内容已变化。", answered: "已被回答",
  truncated: "已截断", viewFull: "查看完整输出", more: "更多", expired: "保存的输出已过期。", running: "运行中",
  waiting: "等待你的回答", pending: "待处理", ok: "完成", error: "失败", denied: "已拒绝", interrupted: "已中断",
  reasoning: "推理", compacted: "已压缩", before: "之前", after: "之后", kept: "摘要", undoCompaction: "撤销压缩",
  compact: "立即压缩", older: "更早的消息", hidden: "条较早的输出已对模型隐藏", offline: "服务器不可用。你输入的内容已保留。",
  noToken: "请打开 `moryflow serve` 打印的链接；`moryflow serve --link` 可再打印一个。", question: "有问题等待回答", go: "前往",
  tree: "树", prompts: "提示词", plugins: "插件", close: "关闭", elsewhere: "在终端中运行", edit: "编辑并分支", fork: "复制分支",
  label: "标签", switchHere: "从这里继续", export: "导出", delete: "删除", confirmDelete: "删除此会话及其输出？",
  default: "默认", custom: "自定义", modelDefault: "使用模型默认值", save: "保存", who: "各段由谁加入", tokens: "令牌",
  status: "状态", hooks: "钩子", quarantine: "隔离", ledger: "各插件所做的事", explain: "解释权限", ask: "询问", stats: "统计",
  attach: "附件", thinking: "思考中", turn: "轮", steps: "步", child: "子代理", title: "标题", save_: "保存", empty: "暂无内容。",
  turnEnded: "本轮结束", memory: "记忆", write: "写入", dont: "不写", menu: "菜单", retry: "等待重试", reload: "已重新加载",
};

let table = EN;

/** Choose the language: that of the settings, else of the browser. */
export function speak(language) {
  const chosen = (language || navigator.language || "en").toLowerCase();
  table = chosen.startsWith("zh") ? ZH : EN;
  document.documentElement.lang = table === ZH ? "zh" : "en";
}

/** Return the words for `key`. */
export const t = (key) => table[key] ?? EN[key] ?? key;
