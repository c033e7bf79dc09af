	.file	"sort.c"
__SP_H__ = 0x3e
__SP_L__ = 0x3d
__SREG__ = 0x3f
__tmp_reg__ = 0
__zero_reg__ = 1
	.text
	.type	quick.constprop.0, @function
quick.constprop.0:
	push r8
	push r9
	push r10
	push r11
	push r12
	push r13
	push r14
	push r15
	push r16
	push r17
	push r28
	push r29
/* prologue: function */
/* frame size = 0 */
/* stack size = 12 */
.L__stack_usage = 12
	movw r12,r24
	movw r14,r22
.L22:
	cp r12,r14
	cpc r13,r15
	brlt .+2
	rjmp .L1
.L25:
	movw r30,r12
	add r30,r14
	adc r31,r15
	brpl .L3
	adiw r30,1
.L3:
	movw r18,r30
	asr r19
	ror r18
	andi r30,lo8(-2)
	add r30,r18
	adc r31,r19
	subi r30,lo8(-(items))
	sbci r31,hi8(-(items))
	ld r20,Z
	ldd r21,Z+1
	movw r28,r14
	movw r16,r12
.L4:
	cp r28,r16
	cpc r29,r17
	brlt .L9
	movw r24,r16
	lsl r24
	rol r25
	add r24,r16
	adc r25,r17
	movw r26,r24
	subi r26,lo8(-(items))
	sbci r27,hi8(-(items))
	ld r18,X+
	ld r19,X+
	sbiw r26,2
	movw r30,r28
	lsl r30
	rol r31
	movw r8,r30
	add r8,r28
	adc r9,r29
	movw r22,r8
	subi r22,lo8(-(items))
	sbci r23,hi8(-(items))
	subi r24,lo8(-(items+3))
	sbci r25,hi8(-(items+3))
	cp r18,r20
	cpc r19,r21
	brlt .+2
	rjmp .L24
.L5:
	subi r16,-1
	sbci r17,-1
	movw r10,r24
	adiw r24,3
	movw r26,r24
	sbiw r26,3
	ld r18,X+
	ld r19,X+
	cp r18,r20
	cpc r19,r21
	brlt .L5
	movw r26,r10
	movw r30,r22
	ld r24,Z
	ldd r25,Z+1
	cp r20,r24
	cpc r21,r25
	brge .L6
.L15:
	movw r30,r8
	subi r30,lo8(-(items-3))
	sbci r31,hi8(-(items-3))
.L7:
	sbiw r28,1
	movw r10,r30
	sbiw r30,3
	ldd r24,Z+3
	ldd r25,Z+4
	cp r20,r24
	cpc r21,r25
	brlt .L7
	movw r22,r10
.L6:
	cp r28,r16
	cpc r29,r17
	brge .L16
.L9:
	movw r18,r14
	sub r18,r16
	sbc r19,r17
	movw r24,r28
	sub r24,r12
	sbc r25,r13
	cp r24,r18
	cpc r25,r19
	brge .L12
	movw r22,r28
	movw r24,r12
	call quick.constprop.0
	movw r12,r16
	cp r12,r14
	cpc r13,r15
	brge .+2
	rjmp .L25
.L1:
/* epilogue start */
	pop r29
	pop r28
	pop r17
	pop r16
	pop r15
	pop r14
	pop r13
	pop r12
	pop r11
	pop r10
	pop r9
	pop r8
	ret
.L24:
	movw r30,r22
	ld r24,Z
	ldd r25,Z+1
	cp r20,r24
	cpc r21,r25
	brlt .L15
.L16:
	adiw r26,2
	ld r24,X
	sbiw r26,2
	subi r16,-1
	sbci r17,-1
	movw r30,r22
	ld r8,Z
	ldd r9,Z+1
	ldd r10,Z+2
	st X+,r8
	st X+,r9
	st X+,r10
	sbiw r28,1
	st Z,r18
	std Z+1,r19
	std Z+2,r24
	rjmp .L4
.L12:
	movw r22,r14
	movw r24,r16
	call quick.constprop.0
	movw r14,r28
	rjmp .L22
	.size	quick.constprop.0, .-quick.constprop.0
	.section	.text.startup,"ax",@progbits
.global	main
	.type	main, @function
main:
/* prologue: function */
/* frame size = 0 */
/* stack size = 0 */
.L__stack_usage = 0
	mov r14,__zero_reg__
	mov r15,__zero_reg__
	movw r2,r14
	movw r4,r2
	ldi r27,lo8(items+72)
	mov r12,r27
	ldi r27,hi8(items+72)
	mov r13,r27
	ldi r16,lo8(85)
	ldi r17,lo8(98)
	ldi r28,lo8(7)
	mov r10,r28
	ldi r28,lo8(1)
	mov r11,r28
.L45:
	movw r18,r14
	subi r18,-57
	sbci r19,-49
	ldi r28,lo8(items)
	ldi r29,hi8(items)
	movw r30,r28
	ldi r20,0
.L27:
	mul r18,r16
	movw r24,r0
	mul r18,r17
	add r25,r0
	mul r19,r16
	add r25,r0
	clr r1
	movw r18,r24
	subi r18,-25
	sbci r19,-55
	movw r24,r18
	lsr r25
	ror r24
	lsr r25
	ror r24
	lsr r25
	ror r24
	andi r24,lo8(63)
	ldi r25,0
	st Z,r24
	std Z+1,__zero_reg__
	std Z+2,r20
	adiw r30,3
	subi r20,lo8(-(1))
	cpi r20,lo8(24)
	brne .L27
	mov r20,r14
	andi r20,1<<0
	ldi r21,0
	sbrs r14,0
	rjmp .L54
	ldi r22,lo8(items)
	ldi r23,hi8(items)
.L28:
	movw r30,r22
	rjmp .L30
.L55:
	sub r24,r18
	sbc r25,r19
	cp __zero_reg__,r24
	cpc __zero_reg__,r25
	brge .L35
.L34:
	ldd r24,Z+5
	ld r6,Z
	ldd r7,Z+1
	ldd r8,Z+2
	std Z+3,r6
	std Z+4,r7
	std Z+5,r8
	st Z,r18
	std Z+1,r19
	std Z+2,r24
	cp r28,r30
	cpc r29,r31
	breq .L35
	sbiw r30,3
.L30:
	ld r24,Z
	ldd r25,Z+1
	ldd r18,Z+3
	ldd r19,Z+4
	cp r18,r24
	cpc r19,r25
	brne .L55
	ldd r24,Z+2
	ldd r25,Z+5
	sub r24,r25
	sbc r25,r25
	cp __zero_reg__,r24
	cpc __zero_reg__,r25
	brlt .L34
.L35:
	subi r20,-1
	sbci r21,-1
	subi r22,-3
	sbci r23,-1
	cpi r20,24
	cpc r21,__zero_reg__
	brne .L28
.L31:
	ldi r22,0
	ldi r23,0
	movw r24,r22
.L36:
	movw r18,r22
	movw r20,r24
	ldi r30,5
	1:
	lsl r18
	rol r19
	rol r20
	rol r21
	dec r30
	brne 1b
	sub r18,r22
	sbc r19,r23
	sbc r20,r24
	sbc r21,r25
	ldd r22,Y+2
	ld r24,Y
	ldd r25,Y+1
	eor r24,r22
	movw r6,r18
	movw r8,r20
	mov r0,r25
	lsl r0
	sbc r0,r0
	add r6,r24
	adc r7,r25
	adc r8,r0
	adc r9,r0
	movw r22,r6
	movw r24,r8
	adiw r28,3
	cp r12,r28
	cpc r13,r29
	brne .L36
	movw r28,r14
	adiw r28,1
	movw r18,r28
	mov r20,r29
	lsl r20
	sbc r20,r20
	mov r21,r20
	call __divmodsi4
	add r2,r18
	adc r3,r19
	adc r4,r20
	adc r5,r21
	ldi r24,2
	cp r14,r24
	cpc r15,__zero_reg__
	breq .L37
	brge .L38
	or r14,r15
	breq .L56
	lds r24,out
	eor r24,r10
	sts out,r24
	ldi r21,lo8(2)
	mov r14,r21
	mov r15,__zero_reg__
	rjmp .L45
.L54:
	ldi r22,lo8(23)
	ldi r23,0
	ldi r24,0
	call quick.constprop.0
	rjmp .L31
.L38:
	ldi r24,5
	cp r14,r24
	cpc r15,__zero_reg__
	brne .L57
	lds r24,out
	lsl r24
	lsl r24
	sts out,r24
	ldi r19,lo8(6)
	mov r14,r19
	mov r15,__zero_reg__
	rjmp .L45
.L56:
	sts out,r11
	clr r14
	inc r14
	mov r15,__zero_reg__
	rjmp .L45
.L37:
	lds r24,out
	add r24,r2
	sts out,r24
	ldi r20,lo8(3)
	mov r14,r20
	mov r15,__zero_reg__
	rjmp .L45
.L57:
	sts out,r3
	cpi r28,8
	cpc r29,__zero_reg__
	brne .L58
	movw r24,r2
/* epilogue start */
	ret
.L58:
	movw r14,r28
	rjmp .L45
	.size	main, .-main
.global	out
	.section .bss
	.type	out, @object
	.size	out, 1
out:
	.zero	1
	.local	items
	.comm	items,72,1
	.ident	"GCC: (GNU) 15.2.0"
.global __do_clear_bss
